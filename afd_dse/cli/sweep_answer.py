"""What ``sweep`` shows: progress over all jobs, then a table of them, the winners, and what went wrong."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from afd_dse.cli.cards import INDENT, console, facts, heading, paragraph, plain_table
from afd_dse.results.words import number, percent
from afd_dse.sweeps.run import Step

_SHOWN = 60  # jobs printed; all are in the summary
_PROBLEMS = 10
_NARROW = 120  # columns below which speed per user and cost are left to the summary
_WORDS = {
    "feasible": "with an answer",
    "infeasible": "that nothing can satisfy",
    "bad_input": "not valid",
    "failed": "failed",
    "missing": "not computed",
}
_STYLES = {"infeasible": "dim", "bad_input": "yellow", "failed": "bold red", "missing": "dim"}


@contextmanager
def sweep_progress() -> Iterator[Callable[[Step], None]]:
    """Callback that shows how many jobs are done, where a person watches."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    out = Console(stderr=True)
    if not out.is_terminal:
        yield lambda step: None
        return
    columns = (
        TextColumn("sweep"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]left[/dim]"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("", total=None)
        wrong = 0

        def show(step: Step) -> None:
            nonlocal wrong
            wrong += step.status in ("failed", "bad_input")
            known = f"{step.reused} stored before · " if step.reused else ""
            failures = f"[red]{wrong} failed[/red] · " if wrong else ""
            # The time left is that of what is computed, not of what was there already.
            if bar.tasks[0].total is None:
                bar.reset(task, total=step.total, completed=step.reused)
            bar.update(task, completed=step.done, description=f"[dim]{known}[/dim]{failures}{step.name}")

        yield show


def print_sweep(document: Mapping[str, Any], out: Console | None = None) -> None:
    """Print what a sweep found."""
    out = out or console()
    points, counts = document["points"], document["counts"]
    facts(out, list(_facts(document)))
    varied, same = _axes(document)
    aside = ", ".join(f"{axis} {value}" for axis, value in same.items())
    heading(out, "Jobs", f"all with {aside}" if aside else "best deployment of each")
    out.print(Padding(_jobs(points[:_SHOWN], varied, wide=out.width >= _NARROW), (0, 0, 0, INDENT)))
    if len(points) > _SHOWN:
        paragraph(out, Text(f"… and {len(points) - _SHOWN:,} more, in the summary", "dim"))
    if counts["feasible"]:
        heading(out, "Winners", "modes that are best somewhere")
        facts(out, list(_winners(document)))
    _print_problems(out, points)
    if document["written"]:
        heading(out, "Written")
        folder = Path(document["out"])
        paragraph(
            out,
            f"{folder}/results/ (one result a job), {', '.join(Path(p).name for p in document['written'])}",
        )
        first = next((p for p in points if p["status"] == "feasible"), None)
        if first is not None:
            out.print(
                Text(f"  afd-dse report {folder}/results/{first['address']}.json", "dim"), soft_wrap=True
            )


def _facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str | Text]]:
    counts = document["counts"]
    parts = [Text(f"{counts['points']:,} jobs", "bold")]
    parts += [
        Text(f"{counts[status]:,} {words}", _STYLES.get(status, "green"))
        for status, words in _WORDS.items()
        if counts[status]
    ]
    yield "sweep", Text(", ").join(parts)
    reused = f", {document['reused']:,} stored before" if document["reused"] else ""
    yield (
        "computed",
        f"{document['computed']:,} in {document['seconds']:.1f} s (engine {document['engine']}){reused}",
    )


def _axes(document: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """The axes whose values differ, and the value of each that has only one."""
    varied, same = [], {}
    for axis in document["axes"]:
        values = {point["labels"].get(axis, "") for point in document["points"]}
        if len(values) > 1:
            varied.append(axis)
        else:
            same[axis] = values.pop()
    return varied, same


def _jobs(points: Sequence[Mapping[str, Any]], axes: Sequence[str], *, wide: bool) -> Table:
    extra = [
        point["name"] if point["name"] != " · ".join(point["labels"].values()) else "" for point in points
    ]
    named = any(extra) or not axes
    numeric = ["GPUs", "tok/s\n/GPU", *(["tok/s\n/user"] if wide else []), "TTFT\nms", "TPOT\nms"]
    numeric += ["$ per\nMtok"] if wide else []
    keys = ["gpus", "tokens_per_s_per_gpu", *(["tokens_per_s_per_user"] if wide else [])]
    keys += ["ttft_percentile_ms", "tpot_ms", *(["usd_per_mtok"] if wide else [])]
    head = [*(["job"] if named else []), *_short(axes, ".")]
    table = plain_table(*head, "mode", "deployment", *numeric, right=numeric)
    table.padding = (0, 1, 0, 0)
    names = [_short([point["labels"].get(axis, "") for point in points], "/") for axis in axes]
    before: tuple[str, ...] = ()
    for point, name, *labels in zip(points, extra, *names, strict=True):
        # What is as in the line above is dimmed, up to the first value that changes.
        changed = next((i for i, label in enumerate(labels) if before[i : i + 1] != (label,)), len(labels))
        before = tuple(labels)
        cells = [Text(name)] if named else []
        cells += [Text(label, "dim" if i < changed else "") for i, label in enumerate(labels)]
        best = point["best"]
        if best is None:
            words = {"infeasible": "✗ infeasible", "bad_input": "✗ not valid", "missing": "not computed"}
            cells.append(Text(words.get(point["status"], "✗ failed"), _STYLES[point["status"]]))
        else:
            cells += [Text(best["mode"], "green"), Text(best["deployment"])]
            cells += [Text(f"{best[key]}" if key == "gpus" else number(best[key])) for key in keys]
        table.add_row(*cells)
    return table


def _short(names: Sequence[str], separator: str) -> list[str]:
    """Names without what stands before their last ``separator``, where they stay as different as they are."""
    short = [name.rpartition(separator)[2] for name in names]
    return short if len(set(short)) == len(set(names)) else list(names)


def _winners(document: Mapping[str, Any]) -> Iterator[tuple[str, str | Text]]:
    feasible = document["counts"]["feasible"]
    for row in document["winners"]:
        lead = "" if row["lead"] is None else f", {percent(row['lead'])} ahead of the next mode (median)"
        yield row["mode"], f"{row['wins']:,} of {feasible:,}{lead}"


def _print_problems(out: Console, points: Sequence[Mapping[str, Any]]) -> None:
    wrong = [point for point in points if point["reason"] and point["best"] is None]
    if not wrong:
        return
    heading(out, "Without an answer", "why; of infeasible jobs what breaks the nearest miss")
    by_reason: dict[str, list[str]] = {}
    for point in wrong:
        by_reason.setdefault(point["reason"], []).append(point["name"])
    facts(
        out,
        [
            (names[0], reason if len(names) == 1 else f"{reason}; {len(names):,} jobs")
            for reason, names in list(by_reason.items())[:_PROBLEMS]
        ],
    )
    if len(by_reason) > _PROBLEMS:
        paragraph(out, Text(f"… and {len(by_reason) - _PROBLEMS:,} more, in the summary", "dim"))
