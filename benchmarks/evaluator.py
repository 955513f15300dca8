"""How many deployments the evaluator computes a second on one core, and that a block gives what single rows give."""

import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, Options, Target
from benchmarks.jobs import FAMILIES, deepseek
from benchmarks.process import NotMeasuredError, probe

GROUP = "evaluator"
CANDIDATES_PER_S, DIFFERENCE, MEMORY_GIB = 1e6, 1e-9, 4.0
SEED = 20261129


def figures(options: Options) -> Iterator[Figure]:
    """Candidates a second by family of modes, the largest difference to ``estimate``, and memory."""
    rows, blocks = (20_000, 1) if options.quick else (500_000, 3)
    peak = 0.0
    for (family, partition), walk in product(
        _families(options).items(), (False,) if options.quick else (False, True)
    ):
        order = ", in the order of the space" if walk else ""
        name, target = f"deployments on one core, {family}{order}", Target("at least", CANDIDATES_PER_S)
        try:
            found = probe(
                "throughput",
                limit_s=options.limit_s,
                one_thread=True,
                job=deepseek(),
                partition=partition,
                rows=rows,
                blocks=options.repeats or blocks,
                seed=SEED,
                walk=walk,
            )
        except NotMeasuredError as error:
            yield Figure(GROUP, name, None, "1/s", target, str(error))
            continue
        peak = max(peak, found["peak_bytes"] / 2**30)
        rate = median(n / cpu for n, cpu in zip(found["rows"], found["cpu_s"], strict=True))
        first = found["first"]["rows"] / found["first"]["cpu_s"]
        drawn = "all batches and replicas of random layouts" if walk else "random rows"
        note = f"blocks of {rows:,}, {drawn}; {first:,.0f}/s in the first, which reads the tables"
        yield Figure(GROUP, name, rate, "1/s", target, note, found)
    if peak:
        yield Figure(GROUP, "peak memory", peak, "GiB", Target("at most", MEMORY_GIB))
    yield _equality(options)


def _families(options: Options) -> Mapping[str, str]:
    """Families of modes to measure; when quick one whose phases share a step, and one with units of all kinds."""
    names = ("colocated", "PD + AFD") if options.quick else tuple(FAMILIES)
    return {name: FAMILIES[name] for name in names}


def _equality(options: Options) -> Figure:
    rows, sample = (2_000, 6) if options.quick else (100_000, 25)
    families = _families(options)
    name, target = "block against single estimates", Target("at most", DIFFERENCE)
    with tempfile.TemporaryDirectory(prefix="afd-dse-benchmarks-") as folder:
        file, limit_s, job = str(Path(folder) / "documents.json"), options.limit_s, deepseek()
        try:
            probe(
                "documents",
                limit_s=limit_s,
                job=job,
                partitions=list(families.values()),
                rows=rows,
                sample=sample,
                seed=SEED,
                out=file,
            )
            found = probe("estimates", limit_s=limit_s, job=job, documents=file)
        except NotMeasuredError as error:
            return Figure(GROUP, name, None, "", target, str(error))
    note = (
        f"{sample} of {rows:,} rows in each of {len(families)} families, one by one in another process;"
        f" the largest relative difference of {found['compared']:,} numbers"
    )
    return Figure(GROUP, name, found["largest"], "", target, note, found)
