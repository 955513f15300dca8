"""The supply-bound analysis as a document, on the terminal, and the counts of FFN nodes as a user writes them."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from afd_dse.cli.cards import console, facts, heading, plain_table
from afd_dse.errors import InputError, Problem
from afd_dse.network.hfu import HfuAnalysis
from afd_dse.network.supply import Regime
from afd_dse.results.words import number

_MOST_NODES = 4096
_ROWS = 20
_REGIMES = {
    Regime.SCALE_UP_BOUND: "1 scale-up full",
    Regime.REUSE_SHRINKS: "2 reuse shrinks",
    Regime.EXPERTS_SHRINK: "3 experts shrink",
    Regime.ONE_EXPERT: "4 one expert",
}

Run = tuple[Mapping[str, Any], Mapping[str, Any]]


def node_counts(text: str) -> list[float]:
    """``1..64``, ``1,2,8`` or a mix of both, ascending and distinct; InputError where it is neither."""
    found: set[int] = set()
    for piece in (part.strip() for part in text.split(",")):
        span = re.fullmatch(r"(\d+)(?:\s*(?:\.\.|-)\s*(\d+))?", piece)
        if span is None:
            raise InputError(Problem("--ffn-nodes", text, "is not understood", "write 1..64 or 1,2,8"))
        first, last = int(span.group(1)), int(span.group(2) or span.group(1))
        if not 1 <= first <= last <= _MOST_NODES:
            remedy = f"count up from 1 to at most {_MOST_NODES}"
            raise InputError(Problem("--ffn-nodes", piece, "is not usable", remedy))
        found.update(range(first, last + 1))
    return [float(count) for count in sorted(found)]


def write_plot(analysis: HfuAnalysis, path: Path) -> None:
    """Write the chart; InputError where that is not possible."""
    from afd_dse.report.supply import supply_page

    page = supply_page(analysis)
    try:
        path.expanduser().write_text(page, encoding="utf-8")
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error})"
        raise InputError(Problem("--plot", str(path), reason, "name a file in a folder of yours")) from error


def document_of(analysis: HfuAnalysis) -> dict[str, Any]:
    """The analysis as JSON; a boundary that is never reached is None."""
    fabric, ends, zone = analysis.hardware.fabric, analysis.boundaries, analysis.dead_zone
    return {
        "model": analysis.model,
        "accelerator": analysis.hardware.name,
        "profile": analysis.hardware.profile,
        "source": analysis.hardware.source,
        "experts": analysis.moe.experts,
        "topk": analysis.moe.topk,
        "moe_intermediate_size": analysis.moe.intermediate,
        "peak_tflops": analysis.hardware.peak_flops / 1e12,
        "scale_out_gb_s": fabric.scale_out_bytes_per_s / 1e9,
        "scale_up_gb_s": fabric.scale_up_bytes_per_s / 1e9,
        "node_gpus": fabric.node_gpus,
        "intensity_flop_per_byte": analysis.intensity,
        "boundaries": {
            "scale_out_full": ends.scale_out_full if math.isfinite(ends.scale_out_full) else None,
            "no_reuse": ends.no_reuse,
            "one_expert": ends.one_expert,
        },
        "dead_zone": None if zone is None else {"from": zone[0], "to": zone[1]},
        "stage_budget_us": None if analysis.budget_s is None else analysis.budget_s * 1e6,
        "points": [_point(analysis, row) for row in range(len(analysis.ffn_nodes))],
    }


def _point(analysis: HfuAnalysis, row: int) -> dict[str, Any]:
    tokens = analysis.tokens_per_gpu
    return {
        "ffn_nodes": float(analysis.ffn_nodes[row]),
        "hfu_max_percent": 100.0 * float(analysis.bound[row]),
        "regime": int(analysis.regime[row]),
        "relative_intensity": float(analysis.relative_intensity[row]),
        "bandwidth_gb_s": float(analysis.bandwidth[row]) / 1e9,
        "experts_per_gpu": float(analysis.experts_per_gpu[row]),
        "dead_zone": bool(analysis.dead[row]),
        "tokens_per_gpu": None if tokens is None else float(tokens[row]),
    }


def print_hfu(d: Mapping[str, Any]) -> None:
    """The analysis on the terminal; runs of equal rows are shown by their ends, long ranges by a selection."""
    out = console()
    heading(out, "supply bound", "how much of its FLOPS the network lets an FFN GPU use")
    facts(out, _facts(d))
    out.print()
    names = ["FFN nodes", "HFU max", "GB/s in", "experts", "intensity"]
    names += ["tokens"] if d["stage_budget_us"] is not None else []
    table = plain_table(*names, "regime", right=names)
    runs = _runs(d["points"])
    shown = runs if len(runs) <= _ROWS else [run for run in runs if _telling(run, d["boundaries"])]
    for first, last in shown:
        table.add_row(*_cells(first, last))
    out.print(table)
    selected = " A selection; --json has every count." if len(shown) < len(runs) else ""
    out.print(Text(f"Rates, experts and tokens of one GPU; intensity relative to one node.{selected}", "dim"))


def _facts(d: Mapping[str, Any]) -> list[tuple[str, str | Text]]:
    ends, zone, full = d["boundaries"], d["dead_zone"], d["boundaries"]["scale_out_full"]
    links = f"{d['scale_up_gb_s']:g} GB/s up and {d['scale_out_gb_s']:g} GB/s out a GPU and direction"
    rows: list[tuple[str, str | Text]] = [
        (
            "model",
            f"{d['model']}, {d['experts']} experts of width {d['moe_intermediate_size']:,}, top-{d['topk']}",
        ),
        (
            "accelerator",
            f"{d['accelerator']} ({d['profile']}): {number(d['peak_tflops'])} TFLOP/s, {links}, "
            f"{d['node_gpus']} GPUs a node",
        ),
        ("intensity", f"{number(d['intensity_flop_per_byte'])} FLOP per network byte"),
        (
            "boundaries",
            f"scale-out full {'never' if full is None else f'above {full:g} FFN nodes'}, reuse within a node gone "
            f"above {ends['no_reuse']:g}, one expert a GPU from {ends['one_expert']:g}",
        ),
        (
            "dead zone",
            "none"
            if zone is None
            else f"{zone['from']:g} to {zone['to']:g} FFN nodes, where the bound is below that of one node",
        ),
    ]
    if d["stage_budget_us"] is not None:
        rows.append(("stage budget", f"{number(d['stage_budget_us'])} µs, three batches in flight"))
    return rows


def _cells(first: Mapping[str, Any], last: Mapping[str, Any]) -> list[str | Text]:
    nodes = f"{first['ffn_nodes']:g}" + ("" if last is first else f"–{last['ffn_nodes']:g}")
    bound = Text(f"{first['hfu_max_percent']:.1f} %", "red" if first["dead_zone"] else "green")
    cells: list[str | Text] = [
        nodes,
        bound,
        f"{first['bandwidth_gb_s']:.3g}",
        f"{first['experts_per_gpu']:.3g}",
        f"{first['relative_intensity']:.2f}",
    ]
    if first["tokens_per_gpu"] is not None:
        cells.append(f"{first['tokens_per_gpu']:,.0f}")
    return [*cells, _REGIMES[Regime(first["regime"])]]


def _telling(run: Run, ends: Mapping[str, float | None]) -> bool:
    """Whether a row is a power of two, lies next to a boundary, or ends the range."""
    first, last = run[0]["ffn_nodes"], run[1]["ffn_nodes"]
    near = any(end is not None and abs(first - end) < 1.0 for end in ends.values())
    return near or last > first or math.log2(first).is_integer()


def _runs(points: Sequence[Mapping[str, Any]]) -> list[Run]:
    """Neighbouring points that differ in their count of nodes only, as first and last."""
    found: list[Run] = []
    for point in points:
        if found and all(found[-1][0][key] == value for key, value in point.items() if key != "ffn_nodes"):
            found[-1] = (found[-1][0], point)
        else:
            found.append((point, point))
    return found
