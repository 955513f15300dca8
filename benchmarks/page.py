"""Stored figures as tables between the marks of docs/performance.md, growth curves as its picture."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.process import ROOT, machine_words
from benchmarks.table import SIGNS, shown

PAGE, PICTURE = ROOT / "docs" / "performance.md", ROOT / "docs" / "gallery" / "growth.png"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
_MET = {True: "yes", False: "**no**", None: ""}


def tables(documents: Sequence[Mapping[str, Any]]) -> str:
    """What the documents hold as Markdown: a table a group; of a figure in several documents the last one counts."""
    figures = {(figure["group"], figure["name"]): figure for each in documents for figure in each["figures"]}
    blocks = [_machine(documents[-1]["machine"])]
    for group in dict.fromkeys(group for group, _ in figures):
        lines = [_line(figure) for (where, _), figure in figures.items() if where == group]
        head = "| figure | measured | target | met | |\n|---|---:|---:|---|---|"
        blocks.append("\n".join([f"**{group[0].upper()}{group[1:]}**\n", head, *lines]))
    return "\n\n".join(blocks)


def _machine(facts: Mapping[str, Any]) -> str:
    load = facts["load"]["1 min"]
    return f"{machine_words(facts)}; load before the run {load:.1f}, where 0 is an idle machine."


def _line(figure: Mapping[str, Any]) -> str:
    unit, target = figure["unit"], figure["target"] or {}
    wanted = "".join(f"{SIGNS[relation]} {shown(value, unit)}" for relation, value in target.items())
    cells = (figure["name"], shown(figure["value"], unit), wanted, _MET[figure["met"]], figure["note"])
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def curves(documents: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The growth curves that the documents hold, of each axis the last."""
    found = {
        figure["curve"]["axis"]: figure["curve"]
        for each in documents
        for figure in each["figures"]
        if "curve" in figure
    }
    yield from found.values()


def renew(documents: Sequence[Mapping[str, Any]], page: Path = PAGE, picture: Path = PICTURE) -> None:
    """Write the tables into ``page``, and ``picture`` if the documents hold growth curves (needs a Chromium)."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n{tables(documents)}\n\n{END}{after}", encoding="utf-8")
    grown = list(curves(documents))
    if grown:
        from benchmarks.growth_chart import draw

        draw(grown, picture)
