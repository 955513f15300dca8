"""The nearest of the names that would have been right, for error messages."""

import difflib
import re
from collections.abc import Iterable

_PREFIX = 3  # characters in common at the start that make two names related: h100_pcie and h100_sxm


def normalised(name: str) -> str:
    """``name`` without case, blanks and punctuation, so that ``H100-SXM`` and ``h100_sxm`` are one."""
    return re.sub(r"[^0-9a-z]+", "", name.casefold())


def closest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """At most ``count`` of the ``known`` names that resemble ``name``, the nearest first."""
    spellings: dict[str, str] = {}
    for candidate in known:
        spellings.setdefault(normalised(candidate), candidate)
    wanted = normalised(name)
    if wanted in spellings:
        return [spellings[wanted]]
    found = difflib.get_close_matches(wanted, list(spellings), n=count, cutoff=0.6)
    if not found and len(wanted) >= _PREFIX:
        found = [spelling for spelling in spellings if spelling.startswith(wanted[:_PREFIX])][:count]
    return [spellings[spelling] for spelling in found]


def choose(name: object, known: Iterable[str]) -> str:
    """Remedy for an unknown ``name``: the closest of the ``known`` names, then the list of them."""
    names = list(known)
    near = closest(name, names) if isinstance(name, str) else []
    everything = ", ".join(names)
    return (
        f"did you mean {' or '.join(near)}? Use one of {everything}" if near else f"use one of {everything}"
    )
