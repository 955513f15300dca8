"""Figures as a table for people and as a document for machines."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from benchmarks.figures import Figure

_MARKS: Mapping[bool | None, str] = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}
SIGNS = {"at most": "≤", "at least": "≥"}
# Columns of characters: figure, measured, target, met; together no wider than a plain terminal.
_WIDTHS = (41, 16, 17, 3)


def shown(value: float | None, unit: str) -> str:
    """A number as people read it: three significant digits, thousands set off, tiny and huge ones as powers."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        text = "∞"
    elif value and not 1e-3 <= abs(value) < 1e7:
        text = f"{value:.3g}"
    elif abs(value) >= 1000 or float(value).is_integer():
        text = f"{value:,.0f}"
    else:
        text = f"{value:.3g}"
    return f"{text} {unit}".strip()


def render(console: Console, figures: Iterable[Figure]) -> None:
    """Print figure by figure what was measured, the target, whether it is met, and below it what there is to say."""
    console.print(_line("", "measured", "target", "met", style="bold"))
    group = ""
    for figure in figures:
        if figure.group != group:
            group = figure.group
            console.print(f"\n[bold]{group}[/]", highlight=False)
        target = figure.target
        wanted = f"{SIGNS[target.relation]} {shown(target.value, figure.unit)}" if target else ""
        met = "[yellow]?[/]" if figure.value is None and target else _MARKS[figure.met]
        console.print(_line(f"  {figure.name}", shown(figure.value, figure.unit), wanted, met))
        if figure.note:
            console.print(Padding(f"[dim]{figure.note}[/]", (0, 0, 0, 4)), highlight=False)


def _line(*cells: str, style: str = "") -> Table:
    line = Table.grid(padding=(0, 1, 0, 0))
    for number, width in enumerate(_WIDTHS):
        line.add_column(width=width, justify="right" if number in (1, 2) else "left", style=style)
    line.add_row(*cells)
    return line


def document(machine: Mapping[str, Any], figures: Sequence[Figure]) -> dict[str, Any]:
    """The JSON document: machine, figures, and how many targets are met, missed and not measured."""
    asked = [figure for figure in figures if figure.target is not None]
    return {
        "machine": machine,
        "figures": [figure.document() for figure in figures],
        "targets": {
            "met": sum(figure.met is True for figure in asked),
            "missed": sum(figure.met is False for figure in asked),
            "not_measured": sum(figure.value is None for figure in asked),
        },
    }
