"""Commands and their options; each loads what it needs when it runs."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from afd_dse.cli.errors import DONE, FAILED, INFEASIBLE, Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
db = typer.Typer(no_args_is_help=True, help="Look into, check and rebuild the operator database.")
app.add_typer(db, name="db")

JobFile = Annotated[
    Path, typer.Argument(metavar="JOB", help="Job file (YAML or JSON), or a deployment request of Dynamo.")
]
Deployment = Annotated[
    str,
    typer.Argument(
        metavar="DEPLOYMENT", help="Deployment (JSON or YAML), a result.json or its folder, or - for stdin."
    ),
]
Mode = Annotated[str | None, typer.Option(metavar="MODE", help="Of a result: the best of this mode.")]
Rank = Annotated[
    int | None, typer.Option(min=1, help="Of a result: the N-th best layout, of all modes or of --mode.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def main() -> None:
    """Entry point of the ``afd-dse`` command."""
    app(prog_name="afd-dse")


def _version(asked: bool) -> None:
    if asked:
        import afd_dse

        sys.stdout.write(f"afd-dse {afd_dse.__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Find the best way to serve an LLM on a cluster: colocated, PD or attention-FFN disaggregated.

    Exit codes: 0 done, 2 bad input, 3 nothing feasible, 1 anything else.
    """


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
    method: Annotated[str | None, typer.Option(metavar="METHOD", help="auto, exhaustive or optuna.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a sampled search.")] = None,
    trials: Annotated[
        int | None, typer.Option(help="Candidates that a sampled search evaluates a mode.")
    ] = None,
    journal: Annotated[
        str | None, typer.Option(metavar="FILE", help="File that a sampled search is continued from.")
    ] = None,
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
        "method": method,
        "seed": seed,
        "trials": trials,
        "journal": journal,
    }
    asked = read_job(job, changes)
    if out is not None:
        from afd_dse.results.files import check_folder

        check_folder(out)
    with search_progress() as progress:
        result = run(asked, progress=progress, confirm=confirm)
    written: list[Path] = []
    if out is not None:
        from afd_dse.report.html import page
        from afd_dse.results.files import write_result

        written = write_result(result, out, page(result.document))
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
) -> int:
    """Evaluate one deployment: stations, operators, provenance, memory."""
    from afd_dse import estimate as run
    from afd_dse.cli.inputs import read_deployment, read_job

    asked = read_job(job, {})
    document = run(asked, read_deployment(deployment, mode, rank))
    if as_json:
        _print_json(document)
    else:
        from afd_dse.cli.estimate import print_estimate

        print_estimate(document, slo=asked.slo.model_dump())
    return DONE if document["feasible"] else INFEASIBLE


CalibrationOption = Annotated[
    str,
    typer.Option(
        "--calibration",
        metavar="default|none|FILE",
        help="What engines take beyond their kernels: fitted to published runs, nothing, or your own fit.",
    ),
]


@app.command()
def validate(
    measured: Annotated[
        Path,
        typer.Argument(metavar="MEASURED.csv", help="Measured runs, or measured KV capacities, one a row."),
    ],
    predictions: Annotated[
        Path | None, typer.Option("--predictions", metavar="OUT.csv", help="Write every row's prediction.")
    ] = None,
    calibration: CalibrationOption = "default",
    as_json: AsJson = False,
) -> int:
    """Compare predictions with measured runs: errors, intervals, regret of the choice."""
    from afd_dse.calibration.api import validate as run
    from afd_dse.calibration.files import check_target, write_predictions

    if predictions is not None:
        check_target(predictions, "--predictions")
    facts, table = run(measured, calibration)
    if predictions is not None:
        write_predictions(table, predictions)
    if as_json:
        _print_json(facts)
    else:
        from afd_dse.cli.accuracy import print_validation

        print_validation(facts, measured)
    return DONE


@app.command()
def calibrate(
    measured: Annotated[
        Path, typer.Argument(metavar="MY_RUNS.csv", help="Your measured runs, five or more.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The calibration file to write.")] = Path(
        "calibration.yaml"
    ),
    start: Annotated[
        str | None,
        typer.Option("--start", metavar="default|none|FILE", help="What the fit shrinks to; none: fit anew."),
    ] = "default",
    as_json: AsJson = False,
) -> int:
    """Fit what engines take beyond their kernels to your own runs."""
    from afd_dse.calibration.api import calibrate as run
    from afd_dse.calibration.files import check_target, write_calibration

    check_target(out, "--out")
    fitted, errors = run(measured, None if start in (None, "none") else start)
    write_calibration(fitted, out)
    if as_json:
        _print_json({"calibration": fitted.model_dump(mode="json"), "written": str(out), **errors})
    else:
        from afd_dse.cli.accuracy import print_calibration

        print_calibration(fitted, errors, out, set(errors["after"]["by"]["framework"]))
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
        _print_json(document)
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
    as_json: AsJson = False,
) -> int:
    """Plan GPUs, money and power for a demand over time: what runs when, and what it costs."""
    from afd_dse.cli.plan import print_plan
    from afd_dse.cli.progress import told
    from afd_dse.results.plan import plan as run
    from afd_dse.spec.demand import load_demand

    asked = load_demand(demand)
    if out is not None:
        from afd_dse.results.files import check_folder

        check_folder(out)
    with told() as tell:
        document = run(asked, folder=out, progress=tell)
    written: list[Path] = []
    if out is not None:
        from afd_dse.report.capacity import write_plan

        written = write_plan(document, out)
    if as_json:
        _print_json(document)
    else:
        print_plan(document, written=written)
    return DONE if document["feasible"] else INFEASIBLE


@app.command()
def models(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One model: catalogue name, alias, or config.json.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """List the catalogued models, or describe one."""
    from afd_dse.cli.catalogues import model_detail, model_list, print_model, print_models

    facts = model_list() if name is None else model_detail(name)
    if as_json:
        _print_json(facts)
    elif isinstance(facts, list):
        print_models(facts)
    else:
        print_model(facts)
    return DONE


@app.command()
def accelerators(as_json: AsJson = False) -> int:
    """List the catalogued accelerators."""
    from afd_dse.cli.catalogues import accelerator_list, print_accelerators

    facts = accelerator_list()
    if as_json:
        _print_json(facts)
    else:
        print_accelerators(facts)
    return DONE


@app.command()
def schema() -> int:
    """Print the JSON schema of the job file."""
    from afd_dse import Job

    _print_json(Job.model_json_schema())
    return DONE


@db.command("list")
def db_list(as_json: AsJson = False) -> int:
    """List the tables by accelerator, framework and operator."""
    from afd_dse.cli.database import print_tables, table_list

    facts = table_list()
    if as_json:
        _print_json(facts)
    else:
        print_tables(facts)
    return DONE


@db.command("show")
def db_show(
    table: Annotated[
        str,
        typer.Argument(metavar="TABLE", help="ACCELERATOR/FRAMEWORK/OPERATOR, e.g. b200_sxm/trtllm/gemm."),
    ],
    as_json: AsJson = False,
) -> int:
    """Describe one table: its columns and their ranges, rows, source."""
    from afd_dse.cli.database import print_table, table_detail

    facts = table_detail(table)
    if as_json:
        _print_json(facts)
    else:
        print_table(facts)
    return DONE


@db.command("check")
def db_check(
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="NAME", help="Coverage of this model only; may be repeated."),
    ] = None,
    with_coverage: Annotated[
        bool,
        typer.Option("--coverage/--no-coverage", help="Look up every model on every accelerator (1 min)."),
    ] = True,
    as_json: AsJson = False,
) -> int:
    """Validate the whole database: schemas, values, hashes; count rows faster than light."""
    from afd_dse.cli.database import check, print_check

    facts = check(model or [], with_coverage)
    if as_json:
        _print_json(facts)
    else:
        print_check(facts)
    return DONE if facts["ok"] else FAILED


@db.command("import")
def db_import(
    wheel: Annotated[
        Path | None,
        typer.Option("--wheel", metavar="FILE", help="aiconfigurator-core wheel; absent: pip fetches it."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Database folder; absent: the package's own.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Rebuild the tables from the published measurements."""
    from afd_dse.cli.database import import_wheel, print_import

    facts = import_wheel(wheel, to)
    if as_json:
        _print_json(facts)
    else:
        print_import(facts)
    return DONE


def _print_json(document: Any) -> None:
    import json

    sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
