"""``simulate``: its options checked, and what it prints: limits, percentiles against the formulas, utilisation."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from afd_dse.cli.cards import INDENT, console, facts, heading, paragraph, plain_table
from afd_dse.cost.expert_cache import KEEPINGS, LOADINGS, ExpertCache
from afd_dse.errors import InputError, Problem
from afd_dse.results.simulate import Options
from afd_dse.results.words import count, number, percent
from afd_dse.simulation.plant import BATCHINGS, KV_POLICIES, ROUTINGS
from afd_dse.spec.suggest import choose

_TIMES = (
    ("ttft_ms", "TTFT", "ttft_ms"),
    ("tpot_ms", "TPOT", "tpot_ms"),
    ("itl_ms", "between tokens", None),
    ("request_latency_ms", "request latency", "request_latency_ms"),
    ("wait_ms", "waiting to start", None),
)
_COLUMNS = ("p50", "p90", "p95", "p99", "mean")


def checked_options(
    *,
    trace: Path | None,
    requests: int | None,
    seed: int,
    rate: float | None,
    concurrency: int | None,
    routing: str,
    batching: str,
    experts: tuple[float | None, str, str],
    kv: str | None,
    max_batch: int | None,
) -> Options:
    """The options of the command line; ``experts`` are the share resident, keeping and loading.

    Raises :class:`InputError` for one that is not known.
    """
    problems = []
    if routing not in ROUTINGS:
        problems.append(Problem("--routing", routing, "no such routing", choose(routing, ROUTINGS)))
    if batching not in BATCHINGS:
        problems.append(Problem("--batching", batching, "no such policy", choose(batching, BATCHINGS)))
    resident, keeps, loads = experts
    if resident is not None and not 0.0 < resident <= 1.0:
        message, remedy = "a share above 0, of 1 at most, is needed", "e.g. --experts-resident 0.5"
        problems.append(Problem("--experts-resident", resident, message, remedy))
    for name, given, known in (
        ("--experts-kept", keeps, KEEPINGS),
        ("--experts-loaded", loads, LOADINGS),
    ):
        if given not in known:
            problems.append(Problem(name, given, "no such policy", choose(given, known)))
    if kv is not None and kv not in KV_POLICIES:
        problems.append(Problem("--kv", kv, "no such policy", choose(kv, KV_POLICIES)))
    if rate is not None and not 0.0 < rate < float("inf"):
        problems.append(Problem("--rate", rate, "a rate above 0 is needed", "e.g. --rate 20"))
    if problems:
        raise InputError(problems)
    return Options(
        trace=trace,
        requests=requests,
        seed=seed,
        requests_per_s=rate,
        concurrency=concurrency,
        routing=next(name for name in ROUTINGS if name == routing),
        batching=next(name for name in BATCHINGS if name == batching),
        expert_cache=None
        if resident is None
        else ExpertCache(
            resident,
            next(name for name in KEEPINGS if name == keeps),
            next(name for name in LOADINGS if name == loads),
        ),
        kv_policy=None if kv is None else next(name for name in KV_POLICIES if name == kv),
        max_batch=max_batch,
    )


@contextmanager
def simulation_progress() -> Iterator[Any]:
    """Callback (requests done, requests) that draws a bar where a person watches."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield None
        return
    columns = (
        TextColumn("simulating"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} requests"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task("", total=1)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_simulation(
    document: Mapping[str, Any], *, seconds: float, written: Sequence[Path] = (), out: Console | None = None
) -> None:
    """Print a simulation; ``seconds`` that it took, ``written`` what has been written."""
    out = out or console()
    deployment = document["deployment"]
    out.print(
        Text(deployment["label"], "bold") + Text(f"  {deployment['mode']}, {deployment['partition']}", "dim")
    )
    facts(out, list(_rows(document, seconds)))
    heading(out, "What users see", "ms; the mean beside what the cost model's formulas say at its own load")
    out.print(Padding(_times(document), (0, 0, 0, INDENT)))
    if document["warnings"]:
        heading(out, "Bear in mind")
        for warning in document["warnings"]:
            paragraph(out, f"• {warning}")
    if written:
        heading(out, "Written")
        for path in written:
            paragraph(out, str(path))


def _rows(document: Mapping[str, Any], seconds: float) -> Iterator[tuple[str, str | Text]]:
    traffic, policies, used = document["traffic"], document["policies"], document["utilization"]
    rate = traffic["offered_requests_per_s"]
    offered = f"{number(rate)} requests/s" if rate is not None else "all at once"
    yield (
        "traffic",
        f"{traffic['requests']:,} requests, {traffic['arrival'].replace('_', ' ')}, {offered}; "
        f"{number(traffic['mean_input_tokens'])} tokens in, {number(traffic['mean_output_tokens'])} out "
        f"on average; seed {traffic['seed']}",
    )
    steps = f"{policies['steps']}, " if policies["steps"] else ""
    yield (
        "policies",
        f"{steps}routing {policies['routing'].replace('_', ' ')} over {policies['prefill_ranks']} ranks, "
        f"{'steps of one length bucket, ' if policies['batching'] == 'buckets' else ''}"
        f"KV cache {'grows' if policies['kv'] == 'grow' else 'reserved for whole outputs'}",
    )
    if (cache := policies["expert_cache"]) is not None:
        kept = "the most popular" if cache["keeps"] == "hot" else "those used last"
        yield (
            "experts",
            f"{percent(cache['resident'])} in HBM ({kept}), the others fetched {cache['loads'].replace('_', ' ')}",
        )
    verdict = (
        Text("✓ the SLO is kept", "green") if document["met"] else Text(f"✗ {document['reason']}", "red")
    )
    for limit in document["limits"]:
        sign = "≤" if limit["met"] else ">"
        verdict.append(
            f"\n{limit['name']} ({limit['statistic']}) {number(limit['simulated_ms'])} ms {sign} "
            f"{limit['limit_ms']:,g} ms",
            "" if limit["met"] else "red",
        )
    yield "verdict", verdict
    formula = document["formula"]
    good = (
        ""
        if document["goodput"] is None
        else f"; {percent(document['goodput'])} of requests within every limit"
    )
    yield (
        "served",
        f"{number(document['requests_per_s'])} requests/s, {number(document['tokens_per_s_per_gpu'])} tokens/s per "
        f"GPU (formula {number(formula['tokens_per_s_per_gpu'])}){good}",
    )
    parts = [f"decode engines {percent(used['decode'])}"]
    if "prefill" in used:
        parts.insert(0, f"prefill engines {percent(used['prefill'])}")
    yield (
        "busy",
        f"{', '.join(parts)}; KV cache {percent(used['kv_mean'])} on average, {percent(used['kv_peak'])} at most",
    )
    lost = []
    if document["refused"]:
        lost.append(f"{document['refused']:,} requests refused: too long for the KV cache")
    if document["preemptions"]:
        lost.append(f"{document['preemptions']:,} times a request lost its cache and was computed again")
    if document["cached_prompt_share"]:
        lost.append(f"{percent(document['cached_prompt_share'])} of prompt tokens found in the prefix cache")
    if lost:
        yield "cache", "; ".join(lost)
    speed = document["request_steps"] / max(seconds, 1e-9)
    yield (
        "simulated",
        f"{number(document['simulated_s'])} s of service in {seconds:.1f} s ({count(speed)} request-steps/s)",
    )


def _times(document: Mapping[str, Any]) -> Any:
    names = (*_COLUMNS, "formula")
    table = plain_table("", *names, right=names)
    for key, words, formula in _TIMES:
        values = [document[key].get(name, None) for name in _COLUMNS]
        shown = ["–" if value is None else number(value) for value in values]
        known = "" if formula is None else number(document["formula"][formula])
        table.add_row(words, *shown, known)
    return table
