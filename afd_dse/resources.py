"""Where the data that ships with the package lies, how its files are read, and what a process keeps in memory."""

import ctypes
import gc
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import yaml

_PACKAGE = Path(__file__).resolve().parent
_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def data_root() -> Path:
    """Folder that holds ``operator_db/`` and ``search_spaces/``.

    An installed wheel carries them in ``afd_dse/_data``; a checkout has them beside the package.
    """
    packaged = _PACKAGE / "_data"
    return packaged if packaged.is_dir() else _PACKAGE.parent


def operator_db_root() -> Path:
    """Folder of the operator database."""
    return data_root() / "operator_db"


def search_spaces_root() -> Path:
    """Folder of the declarative search spaces."""
    return data_root() / "search_spaces"


def parse_yaml(text: str | bytes) -> Any:
    """The document in ``text``, by libyaml where PyYAML has it: several times faster than the parser in Python.

    Raises ``yaml.YAMLError``.
    """
    return yaml.load(text, Loader=_YAML)


def parse_yaml_documents(text: str) -> Iterator[Any]:
    """The documents in ``text``, each parsed when it is asked for. Raises ``yaml.YAMLError``."""
    return yaml.load_all(text, Loader=_YAML)


def keep_freed_memory() -> None:
    """Let the C library keep what arrays free, instead of returning it to the system and asking for it again.

    A block of candidates makes thousands of arrays of a few hundred kB; mapping and zeroing their pages takes longer
    than computing them. Only glibc has these knobs; elsewhere nothing happens.
    """
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2
    for knob, size in ((mmap_threshold, 2**25), (trim_threshold, 2**31 - 1), (top_pad, 2**26)):
        _of_glibc("mallopt", knob, size)


def return_freed_memory() -> None:
    """Give back to the system what :func:`keep_freed_memory` has kept: for a process that is idle now."""
    gc.collect()
    _of_glibc("malloc_trim", 0)


def import_apart(module: str) -> None:
    """Import ``module`` in a thread of its own, so that it keeps nothing of what is under way here.

    A library that remembers why an optional import failed keeps the stack on which it did, with all its variables.
    """
    thread = Thread(target=import_module, args=(module,))
    thread.start()
    thread.join()


def _of_glibc(function: str, *arguments: int) -> None:
    try:
        getattr(ctypes.CDLL(None), function)(*arguments)
    except (OSError, AttributeError, TypeError):
        return
