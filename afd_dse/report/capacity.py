"""The capacity report of a plan: what to get, when, for how much and at what risk on one page; then the evidence."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from afd_dse.report.capacity_cards import bill_card, evidence
from afd_dse.report.cards import Card, Chart
from afd_dse.report.figures.plan import plan_figure
from afd_dse.report.html import asset, embedded, template
from afd_dse.report.printing import printed
from afd_dse.results.files import write_files
from afd_dse.results.plan_file import PLAN
from afd_dse.results.words import moment, number, percent

PAGE, PRINT = "plan.html", "plan.pdf"


@dataclass(frozen=True, slots=True)
class Executive:
    """The first page: tiles (big, small), facts (question, answer), risks (whether it does no harm, words)."""

    asked: str
    title: str
    tiles: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    risks: tuple[tuple[bool, str], ...] = ()
    warnings: tuple[str, ...] = ()


def write_plan(document: Mapping[str, Any], folder: Path, *, pdf: bool = False) -> list[Path]:
    """Write ``plan.json``, ``plan.html`` and, if asked for, ``plan.pdf``, all or none; the paths."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    page = capacity_page(document).encode()
    contents = {PLAN: text.encode(), PAGE: page}
    if pdf:
        contents[PRINT] = printed(page)
    return write_files(folder, contents)


def capacity_page(document: Mapping[str, Any]) -> str:
    """The report as one HTML file that needs no network; printed, its answer is the first page."""
    answer = executive(document)
    first = (bill_card(document), _over_time(document)) if document["feasible"] else ()
    cards = evidence(document)
    return rendered(f"Capacity plan: {answer.title}", answer, first, cards)


def rendered(title: str, answer: Executive, first: Sequence[Card], cards: Sequence[Card]) -> str:
    """A page that begins with an answer and the cards beside it, and goes on with the other ``cards``."""
    charts = [chart for card in (*first, *cards) for chart in card.charts]
    figures = {chart.key: json.loads(chart.variants[""].to_json()) for chart in charts}
    text: str = template("capacity.html.j2").render(
        title=title,
        answer=answer,
        first=first,
        cards=cards,
        style=Markup(asset("report.css") + asset("capacity.css")),
        library=Markup(get_plotlyjs()),
        script=Markup(asset("capacity.js")),
        charts=embedded(figures),
    )
    return text


def schedule_csv(document: Mapping[str, Any]) -> bytes:
    """A row for each period and deployment that runs in it, as CSV."""
    names = ("class", "hardware", "label", "mode", "copies")
    rows = [
        {"period": t, "start_hours": period["start_hours"], **{name: entry[name] for name in names}}
        | {"gpus": entry["copies"] * document["options"][entry["option"]]["gpus"]}
        for t, period in enumerate(document.get("periods", ()))
        for entry in period["running"]
    ]
    text: str = pd.DataFrame(rows, columns=["period", "start_hours", *names, "gpus"]).to_csv(index=False)
    return text.encode()


def executive(document: Mapping[str, Any]) -> Executive:
    """What a person who decides reads: the answer in numbers, words and risks."""
    demand = document["demand"]
    model = demand["model"] if isinstance(demand["model"], str) else "own model"
    hours, classes = demand["horizon"]["hours"], document["classes"]
    rates = [sum(column) for column in zip(*document["requests_per_s"], strict=True)]
    asked = (
        f"Capacity plan for {model} on {demand['framework']}: {number(min(rates))} to {number(max(rates))} requests/s "
        f"of {', '.join(classes)} over {hours:g} hours in periods of {demand['horizon']['period_hours']:g}"
    )
    if not document["feasible"]:
        served = [
            f"{number(rate)} requests/s of {name}" for name, rate in document.get("inverse", {}).items()
        ]
        facts = (("At most", f"{', '.join(served)}: all the hardware on offer, under the same rules"),)
        return Executive(
            asked,
            "This demand cannot be served",
            facts=facts if served else (),
            warnings=_obstacles(document),
        )
    total = document["totals"]
    tiles = (
        (f"${total['usd']:,.0f}", f"for {hours:g} hours"),
        (f"{max(row['gpus'] for row in document['periods']):,}", "GPUs at the peak"),
        (f"${number(total['usd_per_mtok'])}", "per million output tokens")
        if total["usd_per_mtok"] is not None
        else ("–", "no tokens, no price for them"),
        (f"{total['energy_kwh']:,.0f} kWh", "of energy"),
        (percent(total["mean_load"]), "of the capacity in use"),
    )
    return Executive(asked, _title(document), tiles, tuple(_facts(document)), tuple(_risks(document)))


def _obstacles(document: Mapping[str, Any]) -> tuple[str, ...]:
    without = [
        f"{entry['class']} has no deployment on {entry['hardware']}: {entry['reason']}"
        for entry in document["without_deployment"]
    ]
    return (str(document["reason"]), *without)


def _title(document: Mapping[str, Any]) -> str:
    got = [
        f"{row['peak_gpus']} × {row['hardware']}"
        for row in document["hardware"]
        if row["peak_gpus"] or row["usd_reserved"]
    ]
    return f"Get {' and '.join(got)}" if got else "Nothing to get"


def _facts(document: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    rows = document["hardware"]
    kept = [
        f"{document['totals']['reserved_gpus'][row['hardware']]} × {row['hardware']}"
        for row in rows
        if row["billing"] == "reserved" and row["usd_reserved"]
    ]
    rented = [
        f"up to {row['peak_gpus']} × {row['hardware']} ({number(row['mean_gpus'])} on average)"
        for row in rows
        if row["billing"] == "hourly" and row["peak_gpus"]
    ]
    what = [f"reserve {' and '.join(kept)} for the whole time"] if kept else []
    what += [f"rent by the hour {' and '.join(rented)}"] if rented else []
    yield "Get", "; ".join(what) or "nothing"
    gpus = [row["gpus"] for row in document["periods"]]
    most, least = gpus.index(max(gpus)), gpus.index(min(gpus))
    starts = document["periods"][most]["start_hours"], document["periods"][least]["start_hours"]
    yield (
        "When",
        f"most ({max(gpus)} GPUs) on {moment(starts[0])}, fewest ({min(gpus)}) on {moment(starts[1])}; copies of "
        f"deployments start {document['totals']['starts']:,} times",
    )
    parts = [
        f"${sum(row[key] for row in rows):,.0f} for {words}"
        for key, words in (
            ("usd_reserved", "reserved GPUs"),
            ("usd_running", "rented GPUs"),
            ("usd_starts", "starts"),
        )
        if sum(row[key] for row in rows)
    ]
    gap = percent(document["totals"]["gap_to_optimum"])
    yield (
        "Cost",
        f"{' + '.join(parts) or 'nothing'}; within {gap} of the least that these deployments can cost",
    )


def _risks(document: Mapping[str, Any]) -> Iterable[tuple[bool, str]]:
    for lost, words in (
        ("deployment", "any one copy of a deployment"),
        ("domain", "any one scale-up domain"),
    ):
        rows = [row for row in document["failures"] if row["lost"] == lost]
        bad = [row for row in rows if not row["slo_kept"]]
        if bad:
            yield False, f"The loss of {words} breaks the SLO of {_tightest(document, bad)}."
        elif rows:
            worst = max(row["load"] or 0.0 for row in rows)
            yield True, f"The loss of {words} breaks no SLO: the rest is loaded to {percent(worst)} at most."
    for row in document["sensitivity"]:
        if row["factor"] > 1.0:
            yield (
                row["feasible"],
                f"Demand × {row['factor']:g} {_consequence(row)}.",
            )
    for row in document["estimates"]:
        if row["end"] == "low":
            yield (
                row["feasible"],
                f"If deployments serve {percent(1.0 - row['throughput'])} less than estimated (the low end of 90 % of "
                f"measured runs), the demand {_consequence(row)}.",
            )
    most = document["most_load"]
    yield most >= 1.0, f"All the hardware on offer serves {percent(most)} of the busiest period at most."


def _consequence(row: Mapping[str, Any]) -> str:
    if not row["feasible"]:
        return "cannot be served with the hardware on offer"
    if row["usd"] is None:
        return "costs nothing"
    return f"costs ${row['usd']:,.0f} and takes {row['peak_gpus']} GPUs at the peak"


def _tightest(document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{row['class']} ({moment(document['periods'][row['period']]['start_hours'])}: "
        f"{'nothing is left' if row['load'] is None else 'load ' + percent(row['load'])})"
        for row in rows
    )


def _over_time(document: Mapping[str, Any]) -> Card:
    chart = Chart("plan", "Requests per second and GPUs in use over time", {"": plan_figure(document)})
    return Card("time", "Demand and GPUs over time", charts=(chart,))
