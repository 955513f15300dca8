"""A sign of life on stderr while a search runs, only where a person watches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def search_progress() -> Iterator[Callable[[str, int], None]]:
    """Callback for a search: which mode, and how many more candidates have been evaluated."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda mode, rows: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("searching {task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,.0f} evaluated"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("…", total=None)

        def advance(mode: str, rows: int) -> None:
            bar.update(task, description=mode, advance=rows)

        yield advance


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """A spinner beside ``text``."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


@contextmanager
def told() -> Iterator[Callable[[str], None]]:
    """Callback that shows what is being done, where a person watches."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("…") as status:
        yield status.update
