"""The command line's root, the options that commands share, and what they print."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from afd_dse.cli.errors import Commands

# What a newcomer needs comes first in the help.
_FIRST = (
    "optimize",
    "estimate",
    "report",
    "launch",
    "dashboard",
    "simulate",
    "plan",
    "fleet",
    "sweep",
    "validate",
    "calibrate",
)


class Root(Commands):
    """The root command, its commands in the order of a newcomer's needs."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands."""
        names = super().list_commands(ctx)
        return [*_FIRST, *(name for name in names if name not in _FIRST)]


app = typer.Typer(
    cls=Root,
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
CalibrationOption = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        metavar="default|none|FILE",
        help="What engines take beyond their kernels: fitted to published runs, nothing, or your own fit.",
    ),
]


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


def print_json(document: Any) -> None:
    """Print ``document`` as the one JSON document of a command."""
    import json

    sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
