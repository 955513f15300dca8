"""Commands that answer questions: what to deploy, how it behaves, what to buy. Each loads what it needs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from afd_dse.cli import data, evidence, fleet, sweep
from afd_dse.cli.errors import DONE, INFEASIBLE
from afd_dse.cli.root import AsJson, CalibrationOption, Deployment, JobFile, Mode, Rank, app, print_json


@app.command()
def optimize(
    job: JobFile,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Write result.json, pareto.csv, candidates.parquet, report.html."
        ),
    ] = None,
    as_json: AsJson = False,
    modes: Annotated[
        str | None,
        typer.Option(
            metavar="MODES", help="all, all_partitions, or a comma-separated list: 'pd,PA PF | DA | DF'."
        ),
    ] = None,
    space: Annotated[
        str | None, typer.Option(metavar="SPACE", help="Search space: a name or a file.")
    ] = None,
    launchable: Annotated[
        bool | None,
        typer.Option("--launchable", help="Only deployments that a release of the framework runs today."),
    ] = None,
    method: Annotated[str | None, typer.Option(metavar="METHOD", help="auto, exhaustive or optuna.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a sampled search.")] = None,
    trials: Annotated[
        int | None, typer.Option(help="Candidates that a sampled search evaluates a mode.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            "--journal",
            metavar="FILE|URL",
            help="Where a sampled search keeps its trials, to continue or share it: file or database.",
        ),
    ] = None,
    calibration: CalibrationOption = None,
    confirm: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="K",
            help="Simulate up to K deployments before recommending; absent: 20 for percentiles.",
        ),
    ] = None,
) -> int:
    """Find the best deployment of a job, overall and per mode."""
    from afd_dse import optimize as run
    from afd_dse.cli.inputs import read_job
    from afd_dse.cli.progress import search_progress

    changes = {
        "modes": modes,
        "space": space,
        "launchable": launchable,
        "method": method,
        "seed": seed,
        "trials": trials,
        "storage": storage,
        "calibration": calibration,
    }
    asked = read_job(job, changes)
    if out is not None:
        from afd_dse.results.files import check_folder

        check_folder(out)
    with search_progress() as progress:
        result = run(asked, progress=progress, confirm=confirm)
    written: list[Path] = []
    if out is not None:
        from afd_dse.cli.progress import waiting
        from afd_dse.report.html import page
        from afd_dse.results.analysis import analysed
        from afd_dse.results.files import write_result

        with waiting("varying the answer"):
            result = analysed(asked, result)
        written = write_result(result, out, page(result.document, result.candidates))
    if as_json:
        sys.stdout.write(result.to_json() + "\n")
    else:
        from afd_dse.cli.answer import print_answer

        print_answer(result.document, job=str(job), written=written)
    return DONE if result.feasible else INFEASIBLE


@app.command()
def estimate(
    job: JobFile,
    deployment: Deployment,
    as_json: AsJson = False,
    mode: Mode = None,
    rank: Rank = None,
    calibration: CalibrationOption = None,
) -> int:
    """Evaluate one deployment: stations, operators, provenance, memory."""
    from afd_dse import estimate as run
    from afd_dse.cli.inputs import read_deployment, read_job

    asked = read_job(job, {"calibration": calibration})
    document = run(asked, read_deployment(deployment, mode, rank))
    if as_json:
        print_json(document)
    else:
        from afd_dse.cli.estimate import print_estimate

        print_estimate(document, slo=asked.slo.model_dump())
    return DONE if document["feasible"] else INFEASIBLE


@app.command()
def report(
    result: Annotated[
        Path,
        typer.Argument(
            metavar="RESULT",
            help="result.json, plan.json or fleet.json, or the folder that `optimize`, `plan` or `fleet` wrote.",
        ),
    ],
    form: Annotated[
        str | None, typer.Option("--format", metavar="FORMAT", help="html (default), pdf, md or csv.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Absent: report.FORMAT beside the result.")
    ] = None,
) -> int:
    """Write the report of a stored result: interactive page, PDF, Markdown, or all candidates as CSV."""
    from afd_dse.cli.report import write

    sys.stdout.write(f"{write(result, form, out)}\n")
    return DONE


@app.command()
def launch(
    result: Annotated[
        Path,
        typer.Argument(metavar="RESULT", help="result.json, or the folder that `optimize --out` wrote."),
    ],
    mode: Mode = None,
    rank: Rank = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET", help="vllm, sglang, trtllm, dynamo or llm-d; absent: the job's framework."
        ),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="NAME|PATH", help="Checkpoint to serve, if not the job's model.")
    ] = None,
    hosts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Addresses of the nodes, one a line, after the pool where there are several."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write the files there; absent: print them.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Write the files that start a deployment: scripts for an engine, manifests for Dynamo or llm-d."""
    from afd_dse.cli import launch as command

    found = command.read(result, mode, rank, target, checkpoint, hosts)
    written = [] if out is None else command.write(found, out)
    if as_json:
        print_json(found.document)
    else:
        command.show(found, written)
    return DONE


@app.command()
def dashboard(
    results: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RESULT]...", help="result.json files, or folders that `optimize --out` wrote."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this machine; 0: any free one.")
    ] = 8050,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    measured: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Measured runs (CSV) to show beside the predictions.")
    ] = None,
) -> int:
    """Explore results, compare deployments and run searches on an interactive page."""
    from afd_dse.cli.dashboard import run

    run(results or [], port, measured, browser=browser)
    return DONE


@app.command()
def simulate(
    job: JobFile,
    deployment: Deployment,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Requests of a trace (Azure CSV, Mooncake JSON lines)."),
    ] = None,
    requests: Annotated[int | None, typer.Option(min=1, max=10_000_000, help="Requests to send.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed; the same seed gives the same answer.")] = 0,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests/s offered; absent: what the deployment is estimated to serve."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests in flight of a closed loop.")
    ] = None,
    routing: Annotated[
        str, typer.Option(metavar="HOW", help="least_loaded, round_robin, length_buckets or shared_queue.")
    ] = "least_loaded",
    batching: Annotated[
        str, typer.Option(metavar="HOW", help="fifo, or buckets: prompts of like length share a step.")
    ] = "fifo",
    experts_resident: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Share of each rank's experts in HBM; the others are fetched."),
    ] = None,
    experts_kept: Annotated[
        str, typer.Option(metavar="HOW", help="hot (the most popular ones) or recent (used last).")
    ] = "hot",
    experts_loaded: Annotated[
        str,
        typer.Option(metavar="HOW", help="on_demand, prefetch (once routed) or foreseen (a layer ahead)."),
    ] = "prefetch",
    kv: Annotated[
        str | None,
        typer.Option(
            "--kv", metavar="HOW", help="grow (and recompute when full) or reserve; absent: as the framework."
        ),
    ] = None,
    max_batch: Annotated[int | None, typer.Option(min=1, help="Most decoding requests of a rank.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Write simulation.json and timeline.html; resume what is there."
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", metavar="FILE", help="File to resume from if interrupted.")
    ] = None,
    as_json: AsJson = False,
    mode: Mode = None,
    rank: Rank = None,
) -> int:
    """Send requests through one deployment: percentiles, goodput, queues over time."""
    import time

    from afd_dse.cli.inputs import read_deployment, read_job
    from afd_dse.cli.simulate import checked_options, print_simulation, simulation_progress
    from afd_dse.results.simulate import simulate as run

    options = checked_options(
        trace=trace,
        requests=requests,
        seed=seed,
        rate=rate,
        concurrency=concurrency,
        routing=routing,
        batching=batching,
        experts=(experts_resident, experts_kept, experts_loaded),
        kv=kv,
        max_batch=max_batch,
    )
    asked = read_job(job, {})
    found = read_deployment(deployment, mode, rank)
    if out is not None:
        from afd_dse.results.files import check_folder

        check_folder(out)
    start = time.monotonic()
    with simulation_progress() as progress:
        document = run(asked, found, options, checkpoint=checkpoint, folder=out, progress=progress)
    seconds = time.monotonic() - start
    written: list[Path] = []
    if out is not None:
        from afd_dse.report.timeline import write_simulation

        written = write_simulation(document, out)
    if as_json:
        print_json(document)
    else:
        print_simulation(document, seconds=seconds, written=written)
    return DONE if document["met"] else INFEASIBLE


@app.command()
def plan(
    demand: Annotated[Path, typer.Argument(metavar="DEMAND", help="Demand file (YAML or JSON).")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Write plan.json and plan.html; searches done are kept there."
        ),
    ] = None,
    pdf: Annotated[
        bool, typer.Option("--pdf", help="Also write plan.pdf into --out, printed by Chromium or Chrome.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Plan GPUs, money and power for a demand over time: what runs when, and what it costs."""
    from afd_dse.cli.plan import check_printing, print_plan
    from afd_dse.cli.progress import told
    from afd_dse.results.plan import plan as run
    from afd_dse.spec.demand import load_demand

    asked = load_demand(demand)
    if pdf:
        check_printing(out)
    if out is not None:
        from afd_dse.results.files import check_folder

        check_folder(out)
    with told() as tell:
        document = run(asked, folder=out, progress=tell)
    written: list[Path] = []
    if out is not None:
        from afd_dse.report.capacity import write_plan

        written = write_plan(document, out, pdf=pdf)
    if as_json:
        print_json(document)
    else:
        print_plan(document, written=written)
    return DONE if document["feasible"] else INFEASIBLE


def main() -> None:
    """Entry point of the ``afd-dse`` command."""
    app(prog_name="afd-dse")


# The other commands register themselves when their modules are loaded.
__all__ = ["app", "data", "evidence", "fleet", "main", "sweep"]
