"""A result in other forms: the page, the page printed to PDF by a browser, Markdown, CSV of all candidates."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from afd_dse.errors import AfdDseError, InputError, Problem
from afd_dse.report.answer import answer_of
from afd_dse.report.cards import Card, Cell, Table, cards_of
from afd_dse.report.html import page
from afd_dse.report.metrics import points_of
from afd_dse.results.result import Result

# Browsers that print a page without a window; the first one found is used, AFD_DSE_BROWSER before all.
BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
)
_PRINT_SECONDS = 120


class BrowserError(AfdDseError):
    """No browser, or one that does not print."""


def html(result: Result) -> bytes:
    """The interactive page."""
    return page(result.document, result.candidates).encode()


def markdown(result: Result) -> bytes:
    """Answer and tables as Markdown; charts are left out, their numbers are not."""
    answer = answer_of(result.document)
    title = f"{answer.title} ({answer.mode})" if answer.mode else answer.title
    lines = [f"# {title}", "", answer.asked, ""]
    lines += [answer.description, ""] if answer.description else []
    lines += [f"- **{_plain(tile.value)}** {tile.unit}" for tile in answer.tiles]
    lines += ["", *(f"- {question}: {_plain(reply)}" for question, reply in answer.facts)]
    lines += ["", *(f"> {_plain(warning)}" for warning in answer.warnings)]
    for card in cards_of(result.document, points_of(result.document, result.candidates)):
        lines += ["", f"## {card.title}", "", *_card_lines(card)]
    return ("\n".join(lines) + "\n").encode()


def _card_lines(card: Card) -> list[str]:
    if card.nothing:
        return [f"Nothing to show: {card.nothing}."]
    if card.key == "job":
        return ["```json", card.text, "```"]
    if card.table is None:
        return [card.lead, "", "(chart; see the HTML report)"]
    lines = [card.lead, ""] if card.lead else []
    lines += [*_table_lines(card.table), *(f"- {item}" for item in card.items)]
    return [*lines, "", card.text] if card.text else lines


def _table_lines(table: Table) -> list[str]:
    rule = ["---:" if table.rows and table.rows[0][i].number else "---" for i in range(len(table.head))]

    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def cell(found: Cell) -> str:
        return _plain(found.text).replace("|", "\\|")

    return [line(list(table.head)), line(rule), *(line([cell(found) for found in row]) for row in table.rows)]


def _plain(text: str) -> str:
    """Text of a job on one line and without markup of its own."""
    return " ".join(text.split()).replace("<", "&lt;")


def csv(result: Result) -> bytes:
    """All kept candidates, or the deployments of the document where ``candidates.parquet`` is missing; all metrics."""
    points = points_of(result.document, result.candidates)
    text: str = points.to_csv(index=False)
    return text.encode()


def pdf(result: Result) -> bytes:
    """The page as a browser prints it. Raises :class:`BrowserError` where there is no Chromium or Chrome."""
    browser = _browser()
    with tempfile.TemporaryDirectory(prefix="afd-dse-") as name:
        folder = Path(name)
        source, target = folder / "report.html", folder / "report.pdf"
        source.write_bytes(html(result))
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--no-sandbox",  # our own page, no network; without this a browser refuses to run as root
            f"--user-data-dir={folder / 'profile'}",
            "--no-pdf-header-footer",
            "--virtual-time-budget=20000",
            f"--print-to-pdf={target}",
            source.as_uri(),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_PRINT_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BrowserError(f"{browser} did not print the report ({error}); use --format html") from error
        if not target.is_file():
            last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise BrowserError(f"{browser} did not print the report ({last[0]}); use --format html")
        return target.read_bytes()


def _browser() -> str:
    asked = os.environ.get("AFD_DSE_BROWSER")
    for name in (asked,) if asked else BROWSERS:
        if name and (found := shutil.which(name)):
            return found
    missing = f"{asked} (AFD_DSE_BROWSER) does not run" if asked else "no Chromium or Chrome is installed"
    raise BrowserError(
        f"--format pdf: {missing}; install one (Debian: apt-get install chromium), name one in AFD_DSE_BROWSER, or use "
        "--format html and print from your browser"
    )


FORMATS: Mapping[str, Callable[[Result], bytes]] = {"html": html, "pdf": pdf, "md": markdown, "csv": csv}
"""What a report can be written as, by the ending of its file."""


def write_report(result: Result, form: str, path: Path) -> None:
    """Write ``result`` in one of :data:`FORMATS`; the file is replaced as a whole.

    Raises :class:`InputError` when it cannot be written, :class:`BrowserError` when nothing prints.
    """
    content = FORMATS[form](result)
    staged = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(content)
        staged.replace(path)
    except OSError as error:
        with suppress(OSError):
            staged.unlink()
        message = f"cannot be written ({error.strerror or error})"
        raise InputError(Problem("--out", str(path), message, "give a file that you may write to")) from error
