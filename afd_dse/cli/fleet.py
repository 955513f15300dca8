"""The command ``fleet``: several models on one cluster."""

from pathlib import Path
from typing import Annotated

import typer

from afd_dse.cli.errors import DONE, INFEASIBLE
from afd_dse.cli.root import AsJson, app, print_json


@app.command()
def fleet(
    file: Annotated[Path, typer.Argument(metavar="FLEET", help="Fleet file (YAML or JSON).")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Write fleet.json, and job, result and report of every model; searches done are kept there.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Share one cluster among several models: which GPUs each gets, and what it runs there."""
    from afd_dse import fleet as run
    from afd_dse.cli.fleet_answer import print_fleet
    from afd_dse.cli.progress import search_progress, waiting
    from afd_dse.spec.fleet import load_fleet

    asked = load_fleet(file)
    if out is not None:
        from afd_dse.results.files import check_folder

        check_folder(out)
    with search_progress() as progress:
        result = run(asked, out=out, progress=progress)
    written: list[Path] = []
    if out is not None:
        from afd_dse.report.fleet import write_fleet

        with waiting("writing the reports"):
            written = write_fleet(result.document, result.results, out)
    if as_json:
        print_json(result.document)
    else:
        print_fleet(result.document, file=str(file), written=written)
    return DONE if result.feasible else INFEASIBLE
