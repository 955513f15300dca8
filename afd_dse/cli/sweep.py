"""The command ``sweep``: many jobs on this machine or a Ray cluster, resumable."""

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from afd_dse.cli.errors import DONE, FAILED, INFEASIBLE
from afd_dse.cli.root import AsJson, app, print_json


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP", help="Sweep file (YAML or JSON).")],
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="Processes of this machine, or a Ray cluster.")
    ] = "local",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Keep results and summary here; what is there is not computed again."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Jobs at once; absent: one a core or CPU.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="RAY",
            help="Ray cluster: host:port, or auto. Absent: RAY_ADDRESS, else a new one on this machine.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Find the best deployments of a matrix of jobs: models × clusters × workloads × SLOs."""
    from afd_dse.cli.sweep_answer import print_sweep, sweep_progress
    from afd_dse.sweeps.run import engine_named
    from afd_dse.sweeps.run import sweep as run

    chosen = engine_named(engine, workers, address)
    # What an engine says (Ray reports dead nodes on stdout) is no part of the answer.
    with sweep_progress() as progress, contextlib.redirect_stdout(sys.stderr):
        result = run(file, out=out, engine=chosen, progress=progress)
    if as_json:
        print_json(result.document)
    else:
        print_sweep(result.document)
    if result.counts["failed"]:
        return FAILED
    return DONE if result.counts["feasible"] else INFEASIBLE
