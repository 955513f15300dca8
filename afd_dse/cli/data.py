"""Commands about what ships with the package: catalogues, the job schema, the operator database."""

from pathlib import Path
from typing import Annotated

import typer

from afd_dse.cli.errors import DONE, FAILED
from afd_dse.cli.root import AsJson, app, db, print_json


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
        print_json(facts)
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
        print_json(facts)
    else:
        print_accelerators(facts)
    return DONE


@app.command()
def schema(
    document: Annotated[
        str, typer.Argument(metavar="[DOCUMENT]", help="job; sweep or fleet for the file of that command.")
    ] = "job",
) -> int:
    """Print the JSON schema of the job file, the sweep file or the fleet file."""
    from afd_dse.cli.inputs import schema_of

    print_json(schema_of(document))
    return DONE


@db.command("list")
def db_list(as_json: AsJson = False) -> int:
    """List the tables by accelerator, framework and operator."""
    from afd_dse.cli.database import print_tables, table_list

    facts = table_list()
    if as_json:
        print_json(facts)
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
        print_json(facts)
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
        print_json(facts)
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
        print_json(facts)
    else:
        print_import(facts)
    return DONE
