"""What ``plan`` prints: the answer, cost and size, what runs when, what fails how, what it depends on."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from afd_dse.cli.cards import INDENT, console, facts, heading, paragraph, plain_table
from afd_dse.errors import InputError, Problem
from afd_dse.results.plan import break_even_rows
from afd_dse.results.words import count, moment, number, percent

_SPARK = "▁▂▃▄▅▆▇█"
_SHOWN = 24  # periods printed; all are in the JSON


def check_printing(out: Path | None) -> None:
    """Raise an error where ``--pdf`` cannot be done, before anything is searched."""
    from afd_dse.report.printing import find_browser

    if out is None:
        raise InputError(Problem("--pdf", "true", "there is no folder to write to", "add --out DIR"))
    find_browser()


def print_plan(
    document: Mapping[str, Any], *, written: Sequence[Path] = (), out: Console | None = None
) -> None:
    """Print a plan; ``written`` what has been written."""
    out = out or console()
    demand = document["demand"]
    out.print(Text(demand["model"] if isinstance(demand["model"], str) else "own model", "bold"))
    facts(out, list(_rows(document)))
    if document.get("break_even"):
        heading(out, "Hardware and modes", "cheapest deployment of each class when fully used")
        out.print(Padding(_hardware(document), (0, 0, 0, INDENT)))
    if document["feasible"]:
        heading(out, "Schedule", f"first {_SHOWN} periods; all in --json and --out")
        out.print(Padding(_schedule(document), (0, 0, 0, INDENT)))
        heading(out, "Risk")
        facts(out, list(_risk(document)))
    for entry in document["without_deployment"]:
        paragraph(out, f"• {entry['class']} has no deployment on {entry['hardware']}: {entry['reason']}")
    if written:
        heading(out, "Written")
        for path in written:
            paragraph(out, str(path))


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[str, str | Text]]:
    rates = [sum(column) for column in zip(*document["requests_per_s"], strict=True)]
    yield "demand", f"{number(min(rates))} to {number(max(rates))} requests/s  {spark(rates)}"
    rules = document["demand"]["rules"]
    yield "rules", f"{percent(rules['headroom'])} headroom; redundancy: {rules['redundancy']}"
    if not document["feasible"]:
        yield "answer", Text(f"✗ {document['reason']}", "red")
    else:
        total = document["totals"]
        peaks = ", ".join(f"{gpus} × {name}" for name, gpus in total["peak_gpus"].items() if gpus)
        means = ", ".join(f"{number(gpus)} × {name}" for name, gpus in total["mean_gpus"].items() if gpus)
        yield "buy", Text(f"{peaks} at the peak; {means} on average", "bold")
        if total["reserved_gpus"]:
            kept = ", ".join(f"{gpus} × {name}" for name, gpus in total["reserved_gpus"].items())
            yield "reserve", f"{kept} for the whole horizon"
        yield (
            "cost",
            f"${total['usd']:,.0f} in all, ${number(total['usd_per_hour'])} per hour, "
            f"${number(total['usd_per_mtok'])} per million output tokens; within {percent(total['gap_to_optimum'])} "
            "of the optimum",
        )
        yield (
            "energy",
            f"{total['energy_kwh']:,.0f} kWh, {number(total['joules_per_token'])} J per output token; "
            f"{count(total['output_tokens'])} tokens, {total['starts']} starts",
        )
        yield "in use", f"{percent(total['mean_load'])} of the capacity on average"
    if document.get("inverse"):
        served = ", ".join(f"{number(rate)}/s {name}" for name, rate in document["inverse"].items())
        yield (
            "at most",
            f"all the hardware serves {percent(document['most_load'])} of the busiest period: {served}",
        )


def spark(values: Sequence[float]) -> str:
    """A line of blocks, at most 56 wide."""
    step = max(-(-len(values) // 56), 1)
    means = [sum(values[i : i + step]) / len(values[i : i + step]) for i in range(0, len(values), step)]
    top = max(means) or 1.0
    return "".join(_SPARK[min(int(value / top * len(_SPARK)), len(_SPARK) - 1)] for value in means)


def _hardware(document: Mapping[str, Any]) -> Any:
    names = ("tok/s/GPU", "$/Mtok", "$/GPU-h", "break-even $/GPU-h")
    table = plain_table("class", "hardware", "deployment", "mode", *names, right=names)
    for row in break_even_rows(document):
        table.add_row(*row)
    return table


def _schedule(document: Mapping[str, Any]) -> Any:
    table = plain_table("from h", "GPUs", "running (copies × deployment)", "load", right=("from h", "GPUs"))
    for row in document["periods"][:_SHOWN]:
        running = "; ".join(
            f"{entry['class']}: {entry['copies']} × {entry['label']} on {entry['hardware']}"
            for entry in row["running"]
        )
        load = ", ".join(f"{name} {percent(value)}" for name, value in row["load"].items())
        table.add_row(f"{row['start_hours']:g}", str(row["gpus"]), running, load)
    return table


def _risk(document: Mapping[str, Any]) -> Iterator[tuple[str, str | Text]]:
    for row in document["failures"]:
        load = "nothing is left" if row["load"] is None else f"the rest is loaded to {percent(row['load'])}"
        style = "" if row["slo_kept"] else "red"
        verdict = "the SLO is kept" if row["slo_kept"] else "requests queue"
        at = moment(document["periods"][row["period"]]["start_hours"])
        what = "one copy" if row["lost"] == "deployment" else "one scale-up domain"
        yield f"{row['class']} loses {what}", Text(f"from {at} {load}: {verdict}", style)
    for row in document["sensitivity"]:
        yield f"demand × {row['factor']:g}", _cost(row)
    for row in document["estimates"]:
        yield (
            f"throughput × {number(row['throughput'])}",
            f"{_cost(row)} ({row['end']} end of 90 % of measured runs)",
        )


def _cost(row: Mapping[str, Any]) -> str:
    if not row["feasible"]:
        return "cannot be served"
    return "nothing" if row["usd"] is None else f"${row['usd']:,.0f}, {row['peak_gpus']} GPUs at the peak"
