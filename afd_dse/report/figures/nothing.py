"""How a chart says that it has nothing to show."""

from collections.abc import Mapping
from typing import Any

from afd_dse.errors import AfdDseError


class NothingToShowError(AfdDseError):
    """A chart has no data; the message says why."""


def feasible_modes(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The best deployment of every feasible mode. Raises :class:`NothingToShowError` when there is none."""
    found = [entry for entry in document["best_per_mode"].values() if entry["feasible"]]
    if not found:
        raise NothingToShowError("no mode has a feasible deployment")
    return found
