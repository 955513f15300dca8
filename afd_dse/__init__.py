"""Finds the best way to serve an LLM on a cluster: ``load_job``, ``optimize``, ``estimate``, ``sweep``, ``fleet``.

Nothing else is public. Loaded on first use, so that ``import afd_dse`` and ``afd-dse --help`` stay light.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afd_dse.results.api import estimate, optimize
    from afd_dse.results.result import Result
    from afd_dse.spec.job import Job
    from afd_dse.spec.load import load_job
    from afd_dse.sweeps.fleet import fleet
    from afd_dse.sweeps.run import sweep

_HOMES = {
    "load_job": "afd_dse.spec.load",
    "optimize": "afd_dse.results.api",
    "estimate": "afd_dse.results.api",
    "sweep": "afd_dse.sweeps.run",
    "fleet": "afd_dse.sweeps.fleet",
    "Job": "afd_dse.spec.job",
    "Result": "afd_dse.results.result",
}

__all__ = ["Job", "Result", "estimate", "fleet", "load_job", "optimize", "sweep"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])


def _version() -> str:
    """Version of the installed package, of the checkout's ``pyproject.toml`` where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version
    from pathlib import Path

    try:
        return version("afd-dse")
    except PackageNotFoundError:
        import tomllib

        project = Path(__file__).resolve().parents[1] / "pyproject.toml"
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
