"""Published results against ours on the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from afd_dse.cli.cards import console, plain_table


def print_literature(document: Mapping[str, Any]) -> None:
    """A row a result; below, why those that differ do."""
    out = console()
    table = plain_table("", "result", "published", "ours")
    for row in document["results"]:
        table.add_row(_mark(row), row["id"], row["expected"], _ours(row["ours"]))
    out.print(table)
    differing = [row for row in document["results"] if not row["ok"]]
    for row in differing:
        out.print()
        out.print(Text(row["id"], "bold") + Text(f"  {row['note']}"))
    out.print()
    out.print(f"{document['passed']} of {document['rows']} within tolerance")


def _mark(row: Mapping[str, Any]) -> Text:
    return Text("✓", "green") if row["ok"] else Text("✗", "red")


def _ours(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return "; ".join(_ours(item) for item in value)
    return value if isinstance(value, str) else f"{value:.4g}"
