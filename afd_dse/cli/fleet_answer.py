"""What ``fleet`` prints: the split in one line, the models side by side, what each runs, what is exact, what next."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from afd_dse.cli.cards import INDENT, console, facts, heading, paragraph, plain_table
from afd_dse.report.fleet_page import OBJECTIVES, models_words
from afd_dse.results.asked import pools_text
from afd_dse.results.words import constraint, count, number, percent

_NARROW = 90  # columns below which times are left to the page


def print_fleet(
    document: Mapping[str, Any], *, file: str, written: Sequence[Path] = (), out: Console | None = None
) -> None:
    """Print the answer for a fleet; ``file`` is how the user called it, ``written`` what has been written."""
    out = out or console()
    facts(out, list(_facts(document)))
    shared = [model for model in document["models"] if model["deployment"] is not None]
    aside = "what each model gets" if document["feasible"] else "what the cluster serves at best"
    heading(out, "Shares", aside)
    out.print(Padding(_shares(document, wide=out.width >= _NARROW), (0, 0, 0, INDENT)))
    if shared:
        heading(out, "Deployments")
        facts(out, [(model["name"], model["deployment"]["description"]) for model in shared])
    heading(out, "Bear in mind")
    paragraph(out, f"• {document['explanation']}")
    for warning in _warnings(document):
        paragraph(out, f"• {warning}")
    _print_next(out, shared, file, written)


def _facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str | Text]]:
    fleet = document["fleet"]
    yield "cluster", f"{pools_text(fleet)}; {models_words(document)}"
    nodes = "; every model has nodes of its own" if fleet["own_nodes"] else ""
    yield "objective", f"{OBJECTIVES[document['objective']]}{nodes}"
    if not document["feasible"]:
        yield "answer", Text(f"✗ {document['reason']}", "red")
    else:
        have = document["gpus_by_pool"]
        used = ", ".join(
            f"{pool['used']} of {pool['count']} GPUs" + (f" of {name}" if len(have) > 1 else "")
            for name, pool in have.items()
        )
        value = ""
        if document["objective"] == "weighted_throughput":
            value = f", {number(document['weighted_tokens_per_s'])} weighted tokens/s"
        cost = f"${number(document['usd_per_hour'])} per hour"
        yield "answer", Text(f"{used}, {cost}, {number(document['tokens_per_s'])} tokens/s{value}", "bold")
    if document["growth"]:
        yield "at most", f"the whole cluster serves {percent(document['growth'])} of every demand at once"
    kept = f"; {document['reused']} of the models' searches were kept" if document["reused"] else ""
    yield (
        "search",
        (
            f"{count(document['considered'])} deployments considered, {count(document['evaluated'])} evaluated in "
            f"{document['search_seconds']:.1f} s{kept}"
        ),
    )


def _shares(document: Mapping[str, Any], *, wide: bool) -> Table:
    """One row a model: GPUs of each pool, deployment, rate it can serve and rate asked for, times, what limits it.

    Where the terminal is not ``wide``, the times are left to the page.
    """
    pools = list(document["gpus_by_pool"])
    sizes = ["GPUs"] if len(pools) == 1 else [f"GPUs of\n{name}" for name in pools]
    numeric = ["serves\nreq/s", "asked\nreq/s", "load"]
    more = ["tok/s\n/GPU", "TTFT\nms", "TPOT\nms"] if wide else []
    table = plain_table(
        "model", *sizes, "mode", "deployment", *numeric, *more, "limited by", right=[*sizes, *numeric, *more]
    )
    table.padding = (0, 1, 0, 0)
    table.columns[0].no_wrap = table.columns[len(sizes) + 1].no_wrap = True
    table.columns[len(sizes) + 2].overflow, table.columns[len(sizes) + 2].min_width = "fold", 12
    for model in document["models"]:
        d = model["deployment"]
        gpus = [str(model["gpus_by_pool"][name]) for name in pools]
        asked = "–" if model["demand"] is None else number(model["demand"]["requests_per_s"])
        if d is None:
            why = "no deployment meets its SLO" if not model["steps"] else "no GPUs"
            table.add_row(
                model["name"], *gpus, "–", why, "0", asked, "–", *["–"] * len(more), "–", style="dim"
            )
            continue
        short = model["load"] is not None and model["load"] > 1.0 + 1e-9
        times = [number(d[name]) for name in ("tokens_per_s_per_gpu", "ttft_percentile_ms", "tpot_ms")]
        table.add_row(
            model["name"],
            *gpus,
            d["mode"],
            d["label"],
            number(d["requests_per_s"]),
            asked,
            "–" if model["load"] is None else percent(model["load"]),
            *(times if wide else []),
            constraint(d["binding"]["constraint"]) if d["binding"] else "nothing",
            style="red" if short else "",
        )
    return table


def _warnings(document: Mapping[str, Any]) -> Iterator[str]:
    yield from document["warnings"]
    for model in document["models"]:
        for warning in model["warnings"]:
            yield f"{model['name']}: {warning}"


def _print_next(
    out: Console, shared: Sequence[Mapping[str, Any]], file: str, written: Sequence[Path]
) -> None:
    heading(out, "Next")
    rows = []
    if not written:
        rows.append(
            (
                f"afd-dse fleet {shlex.quote(file)} --out answer",
                "write fleet.json, fleet.html, and job, result and report of every model",
            )
        )
    else:
        folder = written[0].parent
        rows.append((f"{folder}/", "fleet.json, fleet.html, and a folder for every model, have been written"))
        rows.append(
            (str(folder / "fleet.html"), "open it in a browser: the shares, and what others would serve")
        )
        for model in shared[:1]:
            own = folder / model["name"]
            job, where = shlex.quote(str(own / "job.json")), shlex.quote(str(own))
            rows.append((f"afd-dse estimate {job} {where}", "where the time goes, operator by operator"))
            rows.append(
                (f"afd-dse optimize {job}", "all that its share of the cluster can do, the whole front")
            )
    for command, words in rows:
        # NOTE: a command is never wrapped, so that it can be copied.
        out.print(Text(" " * INDENT).append(command, "cyan"), soft_wrap=True)
        paragraph(out, Text(words, "dim"), 2 * INDENT)
