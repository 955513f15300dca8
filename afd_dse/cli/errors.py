"""What a command ends with: exit codes, and errors on stderr as one line a problem."""

import os
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from afd_dse.errors import AfdDseError, InputError

DONE, FAILED, BAD_INPUT, INFEASIBLE = 0, 1, 2, 3
_INTERRUPTED = 130
_DEBUG = "--debug"


class Commands(TyperGroup):
    """The root command. A command returns its exit code, or raises; nothing else decides how the process ends."""

    def main(
        self,
        args: Any = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit; ``--debug`` is understood anywhere on the line."""
        words = list(sys.argv[1:] if args is None else args)
        debug = _DEBUG in words
        words = [word for word in words if word != _DEBUG]
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        try:
            code = super().main(words, prog_name, complete_var, False, windows_expand_args, **extra)
        except Exception as error:
            if debug:
                traceback.print_exc()
            code = _report(error)
        sys.exit(code if isinstance(code, int) else DONE)


def _report(error: Exception) -> int:
    """Say what went wrong on stderr, one line a problem; the exit code."""
    if isinstance(error, InputError):
        for problem in error.problems:
            _say(str(problem))
        return BAD_INPUT
    if isinstance(error, AfdDseError):
        _say(f"afd-dse: {error}")
        return FAILED
    if isinstance(error, typer.Abort):
        _say("afd-dse: interrupted")
        return _INTERRUPTED
    usage = getattr(error, "format_message", None)
    if usage is not None:
        context = getattr(error, "ctx", None)
        if context is not None and not usage():
            # A command group without a command: its help is the answer.
            sys.stdout.write(context.get_help())
            return DONE
        command = context.command_path if context is not None else "afd-dse"
        _say(f"{command}: {usage().rstrip('.')}; see `{command} --help`")
        return int(getattr(error, "exit_code", BAD_INPUT))
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has seen enough. Python must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    _say(
        f"afd-dse: {type(error).__name__}: {error}; this is a fault of the program: "
        f"run it again with {_DEBUG} for the traceback"
    )
    return FAILED


def _say(text: str) -> None:
    sys.stderr.write(" ".join(text.split()) + "\n")
