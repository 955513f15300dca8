"""The cards of a report: each answers one question with a sentence, a chart or a table, or says why it cannot."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from afd_dse.report.figures import (
    NothingToShowError,
    decode_info,
    feasible_modes,
    first_token_info,
    front_figure,
    front_info,
    hfu_bars,
    memory_figure,
    memory_info,
    modes_figure,
    modes_info,
    parts_figure,
    ratio_figure,
    ratio_info,
    roofline_figure,
    roofline_info,
    sensitivity_figure,
    sensitivity_info,
)
from afd_dse.report.figures.sensitivity import NOT_FEASIBLE, change_words
from afd_dse.report.figures.theme import TRUST_COLOURS, mode_styles
from afd_dse.report.metrics import METRICS, OBJECTIVES, X_AXES, Y_AXES
from afd_dse.results.datatypes import plain_label
from afd_dse.results.proof import effort, proof_parts, proof_short
from afd_dse.results.what_if import FIXED_LOAD
from afd_dse.results.words import constraint, not_run, number, parameters, percent

_TRUST_WORDS = (
    ("measured", "measured at this very point"),
    ("interpolated", "between or beyond measured points of this kernel"),
    ("borrowed", "efficiency of a related kernel or accelerator"),
    ("speed of light", "from peak rates and bandwidths only"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table: text, whether it is a number, and the colour of a dot in front of it."""

    text: str
    number: bool = False
    dot: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Head, rows, the rows that stand out and those that are dimmed (by position)."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    strong: frozenset[int] = frozenset()
    dim: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart and its variants by name; ``alt`` says in words what it shows."""

    key: str
    alt: str
    variants: Mapping[str, go.Figure]
    choice: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """What stands under a title; ``nothing`` is the reason why there is nothing to show."""

    key: str
    title: str
    lead: str = ""
    charts: tuple[Chart, ...] = ()
    table: Table | None = None
    items: tuple[str, ...] = ()
    text: str = ""
    nothing: str = ""


Maker = Callable[[Mapping[str, Any], pd.DataFrame], Card]


def cards_of(document: Mapping[str, Any], points: pd.DataFrame) -> list[Card]:
    """All cards in the order of the page. ``points`` are the candidates with all metrics."""
    found = []
    for key, title, make in _CARDS:
        try:
            card = make(document, points)
        except NothingToShowError as nothing:
            card = Card(key, title, nothing=str(nothing))
        found.append(card)
    return found


def axis_pairs() -> list[tuple[str, str]]:
    """The pairs of axes that the front can be shown on."""
    return [(x, y) for x, y in product(X_AXES, Y_AXES) if x != y]


def front_card(document: Mapping[str, Any], points: pd.DataFrame) -> Card:
    """Fronts of all modes on every pair of axes."""
    variants: dict[str, go.Figure] = {}
    for x, y in axis_pairs():
        try:
            variants[f"{x}|{y}"] = front_figure(front_info(document, points, x, y))
        except NothingToShowError:
            if (x, y) == (X_AXES[0], Y_AXES[0]):
                raise
    lead = (
        "Each line is the front of one mode: what it can do best at each speed, out of the candidates that the search "
        "kept. Hover for the configuration, click to pin it below."
    )
    alt = "Scatter chart of the Pareto front of every mode; the table below lists the front of all modes together."
    keys = (
        "gpus",
        "tokens_per_s_per_user",
        "tokens_per_s_per_gpu",
        "ttft_percentile_ms",
        "tpot_ms",
        "usd_per_mtok",
    )
    rows = tuple(
        (Cell(d["label"]), Cell(d["mode"]), *(Cell(number(d[key]), number=True) for key in keys))
        for d in document["pareto"]
    )
    head = (
        "deployment",
        "mode",
        "GPUs",
        "tokens/s per user",
        "tokens/s per GPU",
        "TTFT ms",
        "TPOT ms",
        "$/Mtok",
    )
    table = Table("Front of all modes, fastest for a user first", head, rows)
    chart = Chart("front", alt, variants, f"{X_AXES[0]}|{Y_AXES[0]}")
    return Card("front", "Throughput against speed", lead, (chart,), table)


def modes_card(document: Mapping[str, Any], _: pd.DataFrame) -> Card:
    """Every mode with its best deployment, or its nearest miss, and why it is not the answer."""
    styles, best = mode_styles([e["name"] for e in document["modes"]]), document["best"]
    rows, strong, dim = [], set(), set()
    metric = OBJECTIVES[document["job"]["search"]["objective"]]
    for place, entry in enumerate(
        sorted(document["modes"], key=lambda e: _rank(document, e, metric.name, metric.better))
    ):
        rows.append(_mode_row(document, entry, styles[entry["name"]][0]))
        if best is not None and best["mode"] == entry["name"]:
            strong.add(place)
        elif entry["status"] != "feasible":
            dim.add(place)
    head = (
        "mode",
        "deployment",
        "GPUs",
        "tokens/s per GPU",
        "tokens/s per user",
        "TTFT ms",
        "TPOT ms",
        "$/Mtok",
        "searched",
        "why it is not the answer",
    )
    table = Table("Modes compared", head, tuple(rows), frozenset(strong), frozenset(dim))
    if best is None:
        return Card("modes", "Modes compared", "Each row is the mode's nearest miss.", table=table)
    alt = "Bar chart of the best deployment of each mode by the objective; the table below has the same numbers."
    chart = Chart("modes", alt, {"": modes_figure(modes_info(document))})
    return Card(
        "modes", "Modes compared, and why each lost", "The best deployment of each mode.", (chart,), table
    )


def _rank(
    document: Mapping[str, Any], entry: Mapping[str, Any], metric: str, better: int
) -> tuple[int, float]:
    """Best first, then infeasible modes by how far they miss, then those without any layout."""
    found = document["best_per_mode"][entry["name"]]
    if entry["status"] == "no_layout":
        return 2, 0.0
    if entry["status"] == "infeasible":
        return 1, -min(found["slack"].values())
    best = document["best"]
    return (-1, 0.0) if best is not None and best["mode"] == entry["name"] else (0, -better * found[metric])


def _mode_row(document: Mapping[str, Any], entry: Mapping[str, Any], colour: str) -> tuple[Cell, ...]:
    found = document["best_per_mode"][entry["name"]]
    bound = found["binding"]["constraint"] if found.get("binding") else ""
    why = entry["reason"] or f"the answer; limited by {constraint(bound) or 'nothing'}"
    name = Cell(entry["name"], dot=colour)
    if entry["status"] == "no_layout":
        return (name, *(Cell("") for _ in range(7)), Cell(proof_short(entry)), Cell(why))
    if found["launchable"] is None:
        why += f"; {not_run(document['job']['framework'])}"
    keys = ("tokens_per_s_per_gpu", "tokens_per_s_per_user", "ttft_percentile_ms", "tpot_ms", "usd_per_mtok")
    values = [Cell(number(found[key]), number=True) for key in keys]
    searched = Cell(proof_short(entry))
    return (name, Cell(found["label"]), Cell(f"{found['gpus']}", number=True), *values, searched, Cell(why))


def misses_card(document: Mapping[str, Any], _: pd.DataFrame) -> Card:
    """What comes nearest where nothing is feasible."""
    misses = document["nearest_misses"]
    if not misses:
        raise NothingToShowError(
            "the job has feasible deployments" if document["best"] else "no layout exists"
        )
    rows = tuple(
        (Cell(constraint(d["constraint"])), Cell(d["mode"]), Cell(d["label"]), Cell(d["reason"]))
        for d in misses
    )
    table = Table("Nearest misses", ("breaks", "mode", "deployment", "by how much"), rows)
    return Card("misses", "Nearest misses", "What would work if one limit were another.", table=table)


def ratio_card(document: Mapping[str, Any], points: pd.DataFrame) -> Card:
    """The landscape of A:F."""
    figure = ratio_figure(ratio_info(document, points))
    lead = (
        "The best candidate at each ratio of attention to FFN GPUs, of the decode unit where it is split, else of the "
        "prefill unit; the dashed level is the best mode without a split. Only ratios that the search kept appear."
    )
    alt = "Line chart of the objective over the ratio of attention to FFN GPUs, one line a mode."
    return Card("ratio", "A:F landscape", lead, (Chart("ratio", alt, {"": figure}),))


def time_card(document: Mapping[str, Any], _: pd.DataFrame) -> Card:
    """Decode steps and first tokens by part."""
    modes = feasible_modes(document)
    lead = (
        "Work of each station in a decode step, and the parts of the time to the first token, of each mode's best "
        "deployment. What lies beyond the diamond overlaps. A bubble is time in which the busiest GPUs wait; on shared "
        "GPUs a step also waits for prefill."
    )
    charts = (
        Chart(
            "decode",
            "Stacked bars of a decode step by station and mode.",
            {"": parts_figure(decode_info(modes))},
        ),
        Chart("first", "Stacked bars of TTFT by part and mode.", {"": parts_figure(first_token_info(modes))}),
    )
    keys = ("step_ms", "attention_ms", "ffn_ms", "links_ms", "outside_ms", "bubble_ms", "interference_ms")
    rows = tuple(
        (Cell(d["mode"]), *(Cell(number(d["breakdown"]["decode"][key]), number=True) for key in keys))
        for d in modes
    )
    head = (
        "mode",
        "step ms",
        "attention",
        "FFN",
        "links",
        "outside the layers",
        "bubble",
        "waits for prefill",
    )
    return Card("time", "Where the time goes", lead, charts, Table("A decode step, ms", head, rows))


def memory_card(document: Mapping[str, Any], _: pd.DataFrame) -> Card:
    """Groups of the recommended deployment and the memory of their GPUs."""
    best = _best(document)
    rows = tuple(
        (
            Cell(" ".join(group["cells"])),
            Cell(f"{group['accelerator']} ({group['pool']})"),
            Cell(group["label"]),
            Cell(f"{group['replicas']} × {group['gpus']}", number=True),
            Cell("–" if group["batch_size"] is None else number(group["batch_size"]), number=True),
            Cell(f"{group['micro_batches']}", number=True),
            Cell(
                f"{group['memory_gib']['total']:.1f} of {group['memory_gib']['budget']:.1f} GiB", number=True
            ),
        )
        for group in best["groups"]
    )
    head = ("group", "accelerator", "cut", "GPUs", "batch per rank", "micro-batches", "memory of a GPU")
    chart = Chart(
        "memory", "Stacked bars of memory by group; the table below.", {"": memory_figure(memory_info(best))}
    )
    lead = "PA and PF are attention and FFN of prefill, DA and DF those of decode; a group shares GPUs."
    return Card("memory", "Groups and memory", lead, (chart,), Table("Groups", head, rows))


def roofline_card(document: Mapping[str, Any], _: pd.DataFrame) -> Card:
    """HFU of the recommended deployment, and every mode under the roofline."""
    best = _best(document)
    info = roofline_info(document)
    mine = [row for row in document["utilization"] if row["mode"] == best["mode"]]
    lead = (
        "HFU counts the FLOP that the model needs over all time, waiting included, against the dense peak. HBM traffic "
        "counts a group's weights once a micro-batch and its KV cache once a step. The roofline shows every group that "
        "decodes; the distance to the roof is what bubbles, links and kernels cost."
    )
    charts = (
        Chart("hfu", "Bars of HFU and bandwidth by group.", {"": hfu_bars(mine)}),
        Chart("roofline", "Roofline with one point a decoding group.", {"": roofline_figure(info)}),
    )
    return Card("roofline", "Hardware utilisation", lead, charts)


def sensitivity_card(document: Mapping[str, Any], _: pd.DataFrame) -> Card:
    """The objective under every change."""
    info = sensitivity_info(document)
    rows = []
    for row in document["what_if"]:
        recommended, best = row.get("recommended"), row.get("best")
        if recommended is None:
            rows.append((Cell(change_words(row)), *(Cell("") for _ in range(4)), Cell(row["reason"])))
            continue
        keys = ("tokens_per_s_per_gpu", "usd_per_mtok", "tpot_ms", "ttft_percentile_ms")
        values = [Cell(number(recommended[k]) if k in recommended else "–", number=True) for k in keys]
        other = NOT_FEASIBLE if best is None else f"{best['label']} ({best['mode']})"
        if row["change"] == FIXED_LOAD:
            other = "–" if recommended["feasible"] else "breaks a limit"
        rows.append((Cell(change_words(row)), *values, Cell(other)))
    head = ("change", "tokens/s per GPU", "$/Mtok", "TPOT ms", "TTFT ms", "best known layout then")
    lead = (
        "One thing changed at a time. Bars: the recommended layout with its load set anew; diamonds: the best of the "
        "layouts that this answer lists. A new search could do better than the diamonds. Loads are set finer than in "
        "the search, so that the first row may differ from the answer by some tenths of a per cent."
    )
    alt = "Bars of the change of the objective under each change; the table below has the numbers."
    chart = Chart("sensitivity", alt, {"": sensitivity_figure(info)})
    return Card("sensitivity", "What would change it", lead, (chart,), Table("Changes", head, tuple(rows)))


def limits_card(document: Mapping[str, Any], _: pd.DataFrame) -> Card:
    """Slack of every limit."""
    best = _best(document)
    bound = best["binding"]["constraint"] if best["binding"] else None
    ordered = sorted(best["slack"].items(), key=lambda item: item[1])
    rows = tuple(
        (
            Cell(constraint(name)),
            Cell(percent(slack / 100.0), number=True),
            Cell("binds" if name == bound else ""),
        )
        for name, slack in ordered
    )
    strong = frozenset(place for place, (name, _) in enumerate(ordered) if name == bound)
    return Card(
        "limits", "What limits the answer", table=Table("Limits", ("limit", "left of it", ""), rows, strong)
    )


def trust_card(document: Mapping[str, Any], _: pd.DataFrame) -> Card:
    """Shares of the time by origin, and intervals where the result has them."""
    shares = document["provenance"]
    if "measured" not in shares:
        raise NothingToShowError("no deployment was evaluated")
    rows = [
        (
            Cell(name, dot=TRUST_COLOURS[name]),
            Cell(percent(shares[name.replace(" ", "_")]), number=True),
            Cell(words),
        )
        for name, words in _TRUST_WORDS
    ]
    tables = shares["operator_db"]
    text = f"Tables of {tables['name']} {tables['version']} ({tables['licence']})."
    found = intervals_of(document["best"])
    if not found:
        text += (
            " This result holds no prediction intervals: the shares are all that is known of its certainty."
        )
    table = Table("Origin of the time", ("origin of the time", "share", "meaning"), tuple(rows))
    return Card(
        "trust", "How sure", "Where the seconds come from.", table=table, items=tuple(found), text=text
    )


def intervals_of(deployment: Mapping[str, Any] | None) -> list[str]:
    """Prediction intervals and the probability of meeting the SLO in words, where the deployment has them."""
    if deployment is None:
        return []
    names = {"tpot_ms": "TPOT", "ttft_ms": "TTFT", "tokens_per_s_per_gpu": "tokens/s per GPU"}
    found = [
        f"{names.get(key, key)} between {number(low)} and {number(high)}{' ms' if key.endswith('_ms') else ''}"
        for key, (low, high) in (deployment.get("intervals") or {}).items()
    ]
    if deployment.get("slo_probability") is not None:
        found.append(f"meets every limit with a probability of {percent(deployment['slo_probability'])}")
    return found


def job_card(document: Mapping[str, Any], _: pd.DataFrame) -> Card:
    """What was asked, and how it was searched."""
    model = document["model"]
    size = f"{parameters(model['parameters'])} parameters, {parameters(model['active_parameters'])} active"
    rows = _pairs(
        ("model", f"{model['name']}: {size}; {'; '.join(model['kinds'])}"),
        ("data types", ", ".join(f"{role} {dtype}" for role, dtype in model["quantization"].items())),
        ("search", f"{effort(document)} ({document['method']})"),
        ("what is proven", "; ".join(proof_parts(document))),
    )
    job = json.dumps(document["job"], indent=1, ensure_ascii=False)
    return Card("job", "The job", table=Table("Job", ("", ""), rows), text=job)


def types_card(document: Mapping[str, Any], _: pd.DataFrame) -> Card:
    """What every combination of data types does best, and why some are left out."""
    rows = document.get("data_types")
    if not rows:
        raise NothingToShowError("the job gives one data type a role")
    head = ("types", "mode", "deployment", "GPUs", "tokens/s per GPU", "tokens/s per user", "why not")
    names = ("tokens_per_s_per_gpu", "tokens_per_s_per_user")
    cells = []
    for row in rows:
        d = row["best"]
        shown = (
            (d["mode"], plain_label(d), f"{d['gpus']}", *(number(d[name]) for name in names))
            if d
            else [""] * 5
        )
        texts = (row["words"], *shown, row["reason"] or "")
        cells.append(tuple(Cell(text, number=2 < place < 6) for place, text in enumerate(texts)))
    best = document["best"]
    dim = frozenset(i for i, row in enumerate(rows) if not row["best"])
    strong = frozenset(i for i, row in enumerate(rows) if i not in dim and row["best"] == best)
    lead = "The best deployment of each combination. What quantisation does to the model's answers is not judged here."
    return Card("types", "Data types", lead, table=Table("Data types", head, tuple(cells), strong, dim))


def _pairs(*pairs: tuple[str, str]) -> tuple[tuple[Cell, ...], ...]:
    return tuple((Cell(name), Cell(value)) for name, value in pairs)


def _best(document: Mapping[str, Any]) -> Mapping[str, Any]:
    best: Mapping[str, Any] | None = document["best"]
    if best is None:
        raise NothingToShowError("no deployment is feasible")
    return best


_CARDS: Sequence[tuple[str, str, Maker]] = (
    ("front", "Throughput against speed", front_card),
    ("modes", "Modes compared", modes_card),
    ("types", "Data types", types_card),
    ("misses", "Nearest misses", misses_card),
    ("ratio", "A:F landscape", ratio_card),
    ("time", "Where the time goes", time_card),
    ("memory", "Groups and memory", memory_card),
    ("roofline", "Hardware utilisation", roofline_card),
    ("sensitivity", "What would change it", sensitivity_card),
    ("limits", "What limits the answer", limits_card),
    ("trust", "How sure", trust_card),
    ("job", "The job", job_card),
)


def titles() -> Iterable[str]:
    """Titles of all cards, in order."""
    return (title for _, title, _ in _CARDS)


def definitions() -> dict[str, dict[str, str]]:
    """Title and definition of every metric, for the page."""
    return {
        name: {"title": metric.title, "definition": metric.definition} for name, metric in METRICS.items()
    }
