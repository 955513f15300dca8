"""A result in other forms: the page, the page printed to PDF by a browser, Markdown, CSV of all candidates."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from afd_dse.errors import InputError, Problem
from afd_dse.report.answer import answer_of
from afd_dse.report.capacity import capacity_page, schedule_csv
from afd_dse.report.cards import Card, Cell, Table, cards_of
from afd_dse.report.fleet_page import fleet_page
from afd_dse.report.html import page
from afd_dse.report.metrics import points_of
from afd_dse.report.printing import printed
from afd_dse.results.result import Result


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
    return printed(html(result))


FORMATS: Mapping[str, Callable[[Result], bytes]] = {"html": html, "pdf": pdf, "md": markdown, "csv": csv}
"""What a report can be written as, by the ending of its file."""

PLAN_FORMATS: Mapping[str, Callable[[Mapping[str, Any]], bytes]] = {
    "html": lambda document: capacity_page(document).encode(),
    "pdf": lambda document: printed(capacity_page(document).encode()),
    "csv": schedule_csv,
}
"""What a plan can be written as: the page, the page printed, and the schedule."""


FLEET_FORMATS: Mapping[str, Callable[[Mapping[str, Any]], bytes]] = {
    "html": lambda document: fleet_page(document).encode(),
    "pdf": lambda document: printed(fleet_page(document).encode()),
}
"""What a fleet can be written as: the page, and the page printed."""


def write_report(result: Result, form: str, path: Path) -> None:
    """Write ``result`` in one of :data:`FORMATS`; the file is replaced as a whole.

    Raises :class:`InputError` when it cannot be written, :class:`BrowserError` when nothing prints.
    """
    write_content(FORMATS[form](result), path)


def write_content(content: bytes, path: Path) -> None:
    """Write a report's content; the file is replaced as a whole. Raises :class:`InputError` when it cannot be."""
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
