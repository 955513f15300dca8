"""The evidence of a capacity report, a card for each question; each says which part of ``plan.json`` it shows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from afd_dse.report.cards import Card, Cell, Chart, Table
from afd_dse.report.figures.plan import money_figure
from afd_dse.results.plan import break_even_rows
from afd_dse.results.words import count, moment, number, percent

MOST_ROWS = 400
"""Rows of the schedule that are shown; all of them are in ``plan.json``."""


def bill_card(document: Mapping[str, Any]) -> Card:
    """What is got of each hardware, and what it costs."""
    rows = document["hardware"]
    lines = [
        (
            row["hardware"],
            row["billing"],
            f"{row['peak_gpus']} of {row['available_gpus']}",
            number(row["mean_gpus"]),
            f"{row['paid_gpu_hours']:,.0f}",
            f"${number(row['usd_per_gpu_hour'])}",
            f"${row['usd_starts']:,.0f}",
            f"${row['usd']:,.0f}",
        )
        for row in rows
    ]
    if len(rows) > 1:
        sums = [sum(row[key] for row in rows) for key in ("mean_gpus", "paid_gpu_hours", "usd_starts", "usd")]
        numbers = (number(sums[0]), f"{sums[1]:,.0f}", "", f"${sums[2]:,.0f}", f"${sums[3]:,.0f}")
        lines.append(("together", "", "", *numbers))
    head = (
        "hardware",
        "billing",
        "GPUs at the peak",
        "on average",
        "GPU-hours paid",
        "per GPU-hour",
        "starts",
        "cost",
    )
    strong = frozenset({len(rows)}) if len(rows) > 1 else frozenset()
    return Card("bill", "What to get, and what it costs", table=_table("the bill", head, lines, 2, strong))


def evidence(document: Mapping[str, Any]) -> tuple[Card, ...]:
    """The cards in reading order. A plan that is not feasible has what is known without a schedule."""
    cards = []
    if document["feasible"]:
        cards += [_failures(document), _variations(document)]
    if document.get("break_even"):
        cards.append(_break_even(document))
    if document["feasible"]:
        money = Chart("money", "USD per hour and USD spent over time", {"": money_figure(document)})
        source = "Source: periods[].usd. Reservations are spread evenly; a start is paid in the period that it serves."
        cards.append(Card("money", "Money over time", charts=(money,), text=source))
    cards.append(_deployments(document))
    if document["feasible"]:
        cards += [_schedule(document), _numbers(document)]
    demand = yaml.safe_dump(
        given(document["demand"]), sort_keys=False, allow_unicode=True, default_flow_style=None
    )
    cards += [_assumptions(document), Card("demand", "The demand as it was read", text=demand)]
    return tuple(cards)


def _table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    first_number: int,
    strong: frozenset[int] = frozenset(),
) -> Table:
    """A table whose columns from ``first_number`` on are numbers."""
    cells = tuple(
        tuple(Cell(text, number=place >= first_number) for place, text in enumerate(row)) for row in rows
    )
    return Table(caption, tuple(head), cells, strong)


def _failures(document: Mapping[str, Any]) -> Card:
    rows = [
        (
            row["class"],
            "one copy" if row["lost"] == "deployment" else "one scale-up domain",
            "kept" if row["slo_kept"] else "broken: requests queue",
            moment(document["periods"][row["period"]]["start_hours"]),
            number(row["requests_per_s_wanted"]),
            number(row["requests_per_s_left"]),
            "–" if row["load"] is None else percent(row["load"]),
        )
        for row in document["failures"]
    ]
    head = (
        "class",
        "lost",
        "SLO",
        "tightest from",
        "requests/s wanted",
        "requests/s left",
        "load of the rest",
    )
    lead = "The period in which a loss hurts most, and what is left then; up to 100 % the SLO is kept."
    return Card(
        "failures",
        "If something fails",
        lead,
        table=_table("losses", head, rows, 4),
        text="Source: failures.",
    )


def _variations(document: Mapping[str, Any]) -> Card:
    usd = document["totals"]["usd"]
    peak = max(row["gpus"] for row in document["periods"])
    rows = [("the plan", "", f"${usd:,.0f}", f"{peak}")]
    cases = [(f"demand × {row['factor']:g}", row) for row in document["sensitivity"]]
    cases += [
        (f"throughput × {number(row['throughput'])} ({row['end']} end of 90 % of measured runs)", row)
        for row in document["estimates"]
    ]
    for words, row in cases:
        if row["feasible"] and row["usd"] is not None:
            change = f"{'+' if row['usd'] >= usd else '−'}{percent(abs(row['usd'] / usd - 1.0))}"
            rows.append((words, change, f"${row['usd']:,.0f}", f"{row['peak_gpus']}"))
        else:
            rows.append((words, "", "–" if row["feasible"] else "cannot be served", "–"))
    lead = "Every period at its own least cost, relative to the same for the plan."
    head = ("case", "change", "cost", "GPUs at the peak")
    source = "Source: sensitivity and estimates; the interval of throughput is that of measured runs."
    table = _table("variations", head, rows, 1)
    return Card(
        "variations", "If demand or deployments are other than expected", lead, table=table, text=source
    )


def _break_even(document: Mapping[str, Any]) -> Card:
    head = (
        "class",
        "hardware",
        "deployment",
        "mode",
        "tokens/s/GPU",
        "$/Mtok",
        "$/GPU-hour",
        "break-even $/GPU-hour",
    )
    lead = (
        "The cheapest deployment of each class on each hardware when it is fully used. Below its break-even price a "
        "hardware is the cheapest of a class; where it is the cheapest already, it is so up to that price."
    )
    table = _table("break-even", head, break_even_rows(document), 4)
    return Card("break-even", "Hardware and modes", lead, table=table, text="Source: break_even.")


def _deployments(document: Mapping[str, Any]) -> Card:
    rows = [
        (
            row["class"],
            row["hardware"],
            row["label"],
            row["mode"],
            str(row["gpus"]),
            number(row["requests_per_s"] / row["rated"]),
            percent(row["rated"]),
            number(row["requests_per_s"]),
            number(row["ttft_percentile_ms"]),
            number(row["tpot_ms"]),
        )
        for row in document["options"]
    ]
    head = (
        *(
            "class",
            "hardware",
            "deployment",
            "mode",
            "GPUs",
            "requests/s estimated",
            "× rated at",
            "= requests/s",
        ),
        *("TTFT ms", "TPOT ms"),
    )
    rating = document["rating"]
    lead = (
        "Found by the search for each class and hardware. Each was then simulated at its estimated rate and at smaller "
        f"shares of it until it kept the SLO, with {rating['requests']:,} requests and seed {rating['seed']}: that is "
        "the rate it is planned with. TTFT (at the percentile of the SLO) and TPOT are the estimates at the full rate."
    )
    nothing = "" if rows else "no deployment on any hardware keeps its SLO"
    table = _table("deployments", head, rows, 4)
    return Card(
        "deployments",
        "Deployments to choose from",
        lead,
        table=table,
        text="Source: options.",
        nothing=nothing,
    )


def _schedule(document: Mapping[str, Any]) -> Card:
    """Rows where something changes."""
    rows, before = [], None
    for row in document["periods"]:
        if row["running"] != before:
            running = [_copies(document["classes"], row["running"], name) for name in document["classes"]]
            rows.append(
                (
                    moment(row["start_hours"]),
                    str(row["gpus"]),
                    "\n".join(filter(None, running)),
                    _changes(row),
                )
            )
        before = row["running"]
    lead = "One row whenever something changes; + starts, − stops."
    if len(rows) > MOST_ROWS:
        lead += f" The first {MOST_ROWS} of {len(rows):,} rows; all of them are in plan.json."
    table = _table("schedule", ("from", "GPUs", "running", "changes"), rows[:MOST_ROWS], 9)
    return Card(
        "schedule", "Schedule", lead, table=table, text="Source: periods[].running, starts and stops."
    )


def _copies(classes: Sequence[str], entries: Sequence[Mapping[str, Any]], name: str) -> str:
    found = [
        f"{entry['copies']} × {entry['label']} on {entry['hardware']}"
        for entry in entries
        if entry["class"] == name
    ]
    return (
        f"{name if len(classes) > 1 else ''}{': ' if len(classes) > 1 else ''}{' + '.join(found)}"
        if found
        else ""
    )


def _changes(row: Mapping[str, Any]) -> str:
    signed = [("+", entry) for entry in row["starts"]] + [("−", entry) for entry in row["stops"]]
    return ", ".join(
        f"{sign}{entry['copies']} {entry['class']} {entry['label']} on {entry['hardware']}"
        for sign, entry in signed
    )


def _numbers(document: Mapping[str, Any]) -> Card:
    rows = list(_derivations(document))
    table = _table("numbers", ("number", "value", "follows from", "in plan.json"), rows, 9)
    lead = "Every number of the first page, how it follows, and where it stands in plan.json."
    return Card("numbers", "Where the numbers come from", lead, table=table)


def _derivations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    total = document["totals"]
    busiest = document["periods"][document["peak_period"]]["start_hours"]
    yield (
        "cost",
        f"${total['usd']:,.2f}",
        "rented GPU-hours × price + started GPUs × (start_hours × price + start_usd_per_gpu) + reserved GPUs × price × "
        "horizon",
        "totals.usd; by hardware: hardware[].usd",
    )
    tokens = f"{count(total['output_tokens'])}"
    yield (
        "output tokens",
        tokens,
        "Σ over classes and periods of requests/s × seconds × mean output tokens",
        "totals.output_tokens",
    )
    if total["usd_per_mtok"] is not None:
        yield (
            "per million output tokens",
            f"${number(total['usd_per_mtok'])}",
            "cost / output tokens",
            "totals.usd_per_mtok",
        )
        yield (
            "energy",
            f"{total['energy_kwh']:,.0f} kWh; {number(total['joules_per_token'])} J per output token",
            "GPU-hours in use × power per GPU, idle ones of a reservation apart",
            "totals.energy_kwh, totals.joules_per_token",
        )
    yield (
        "GPUs at the peak",
        str(max(row["gpus"] for row in document["periods"])),
        "Σ GPUs × copies running, the largest period",
        "periods[].gpus",
    )
    yield (
        "capacity in use",
        percent(total["mean_load"]),
        "Σ demand / Σ (requests/s × copies running), over all periods",
        "totals.mean_load",
    )
    yield (
        "distance from the optimum",
        percent(total["gap_to_optimum"]),
        "1 − the solver's lower bound of the cost / the cost",
        "totals.gap_to_optimum",
    )
    yield (
        "at most",
        percent(document["most_load"]),
        f"the largest multiple of the demand of {moment(busiest)} that all the hardware serves under the same rules",
        "most_load; by class: inverse",
    )
    yield (
        "starts",
        f"{total['starts']:,}",
        "copies that run and did not run in the period before",
        "totals.starts",
    )


def _assumptions(document: Mapping[str, Any]) -> Card:
    demand = document["demand"]
    rules = demand["rules"]
    kept = {
        "none": "nothing may fail",
        "deployment": "any one copy of a deployment may fail",
        "domain": "any one scale-up domain may fail with all copies in it",
    }
    items = [
        f"{percent(rules['headroom'])} of the capacity stay free in every period; {kept[rules['redundancy']]}.",
        "Demand inside a period is its mean; bursts are what the headroom and the arrivals of the rating are for.",
        "A class is served by deployments of its own; a copy starts and stops as a whole, at the start of a period.",
        "Latencies and throughput are estimates from measured kernels, not measurements of whole systems: see the 90 % "
        "intervals above.",
        "Prices and power are per GPU, as given or of the catalogue; networks, storage and people are not priced.",
    ]
    for kind in demand["hardware"]:
        price = kind["usd_per_gpu_hour"]
        shown = "the catalogue's price" if price is None else f"${price:g} per GPU-hour"
        start = f"a start takes {kind['start_hours']:g} hours and ${kind['start_usd_per_gpu']:g} per GPU"
        given = kind["accelerator"]
        what = given if isinstance(given, str) else "own accelerator"
        items.append(f"{kind['name']}: up to {kind['count']} × {what}, {shown}, {kind['billing']}; {start}.")
    items += [f"{entry['name']}: {_slo(entry['slo'])}." for entry in demand["classes"]]
    items.append(f"Planned with afd-dse {document['version']}; the same file and version give the same plan.")
    return Card("assumptions", "Assumptions", items=tuple(items))


def given(value: Any) -> Any:
    """A document without what is not given."""
    if isinstance(value, Mapping):
        return {name: given(entry) for name, entry in value.items() if entry is not None}
    return [given(entry) for entry in value] if isinstance(value, list) else value


def _slo(slo: Mapping[str, Any]) -> str:
    limits = [
        f"{words} ≤ {slo[name]:,g} ms{extra}"
        for name, words, extra in (
            ("ttft_ms", "TTFT", f" at percentile {slo['percentile']:g}"),
            ("tpot_ms", "TPOT", " on average"),
            ("request_latency_ms", "request latency", " on average"),
        )
        if slo.get(name) is not None
    ]
    return ", ".join(limits) or "no limit"
