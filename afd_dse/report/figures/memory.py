"""Memory of one GPU of every group of a deployment against what it may fill."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from afd_dse.report.figures.theme import INK, MEMORY_COLOURS, stacked_bars, styled

_TERMS = (
    ("weights", "weights"),
    ("kv_cache", "KV cache"),
    ("activations", "activations"),
    ("framework", "framework"),
)


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """GiB per GPU by group: parts (name, colour, one value a group) and the budget."""

    groups: tuple[str, ...]
    parts: tuple[tuple[str, str, tuple[float, ...]], ...]
    budget_gib: tuple[float, ...]


def memory_info(deployment: Mapping[str, Any]) -> MemoryInfo:
    """The groups of one deployment."""
    memory = [group["memory_gib"] for group in deployment["groups"]]
    names = tuple(f"{' '.join(group['cells'])}: {group['label']}" for group in deployment["groups"])
    parts = tuple(
        (words, MEMORY_COLOURS[words], tuple(entry[key] for entry in memory)) for key, words in _TERMS
    )
    return MemoryInfo(names, parts, tuple(entry["budget"] for entry in memory))


def memory_figure(info: MemoryInfo) -> go.Figure:
    """Stacked parts a group, a line at the budget."""
    figure = go.Figure()
    stacked_bars(figure, info.groups, info.parts, "%{x:.1f} GiB")
    figure.add_scatter(
        y=info.groups,
        x=info.budget_gib,
        mode="markers",
        name="may be filled",
        marker={"symbol": "line-ns", "size": 26, "line": {"width": 3, "color": INK[0]}},
        hovertemplate="may be filled: %{x:.1f} GiB<extra>%{y}</extra>",
    )
    figure.update_xaxes(title="memory of a GPU (GiB)", rangemode="tozero")
    return styled(figure, 196 + 44 * len(info.groups), labels=info.groups)
