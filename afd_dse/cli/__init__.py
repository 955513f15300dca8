"""The command line: ``afd-dse``. Only typer and rich are loaded until a command runs."""

from afd_dse.cli.app import app, main

__all__ = ["app", "main"]
