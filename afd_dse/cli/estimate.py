"""What ``estimate`` prints: one deployment, then where its steps go, operator by operator."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from afd_dse.cli.cards import INDENT, console, deployment_card, heading, paragraph, plain_table
from afd_dse.results.words import number, percent

_BAR = 10


def print_estimate(
    document: Mapping[str, Any], *, slo: Mapping[str, Any], out: Console | None = None
) -> None:
    """Print the estimate of one deployment under the limits ``slo`` of its job."""
    out = out or console()
    out.print(Text(document["label"], "bold") + Text(f"  {document['mode']}, {document['partition']}", "dim"))
    deployment_card(out, document, slo)
    for phase, title in (("decode", "Decode step"), ("prefill", "Prefill step")):
        step = document["breakdown"][phase]["step_ms"]
        aside = "work of one GPU or link; stations overlap where micro-batches are in flight"
        if phase == "prefill" and document["policy"] == "chunked":
            aside = "a step that carries prefill and decode tokens together"
        heading(out, f"{title}: {number(step)} ms", aside)
        _print_operators(out, document["operators"][phase])
    if document["warnings"]:
        heading(out, "Bear in mind")
        for warning in document["warnings"]:
            paragraph(out, f"• {warning}")


def _print_operators(out: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """One line an operator, over all kinds of layers; --json has them apart."""
    numeric = ("µs a layer", "ms a step", "share")
    table = plain_table("station", "operator", *numeric, "", "from", right=numeric)
    table.padding = (0, 1, 0, 0)
    merged = merge_kinds(rows)
    station = ""
    longest = max(row["share"] for row in merged)
    for row in merged:
        first = row["station"] != station
        station = row["station"]
        table.add_row(
            Text(station if first else "", "bold"),
            row["operator"],
            number(1e3 * row["ms_per_layer"]),
            number(row["ms_per_step"]),
            percent(row["share"]),
            Text("█" * round(_BAR * row["share"] / longest), "blue"),
            Text(row["provenance"].replace("_", " "), _style(row["provenance"])),
        )
    out.print(Padding(table, (0, 0, 0, INDENT)))


def merge_kinds(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one operator in several kinds of layers as one: sums, and time per layer and origin of the longest."""
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    longest: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row["station"], row["operator"])
        if key not in merged:
            merged[key], longest[key] = dict(row), row["ms_per_step"]
            continue
        into = merged[key]
        into["ms_per_step"] += row["ms_per_step"]
        into["share"] += row["share"]
        if row["ms_per_step"] > longest[key]:
            longest[key] = row["ms_per_step"]
            into |= {name: row[name] for name in ("ms_per_layer", "provenance", "layers")}
    return list(merged.values())


def _style(provenance: str) -> str:
    return "green" if provenance in ("measured", "interpolated") else "yellow"
