"""What the literature calls ways to serve, and the preset or mode that each is."""

from collections.abc import Mapping

from afd_dse.errors import InputError
from afd_dse.spec.modes import resolve_mode

# The baselines of goodput studies under the names of their tables; PD and colocated are meant as they are run there,
# with nothing overlapped.
ORDERED: Mapping[str, str] = {
    "shared expert pool": "expertplex",
    "PDMux": "multiplexed_prefill",
    "PD": "distserve",
    "colocated": "prefill_first",
    "chunked": "sarathi",
}
_BY_WORDS = {name.casefold(): preset for name, preset in ORDERED.items()}


def preset_of(name: str, field: str = "inputs.modes") -> str:
    """The preset or mode behind a name of the literature; InputError with what there is for any other name."""
    words = " ".join(name.casefold().split())
    if words in _BY_WORDS:
        return _BY_WORDS[words]
    found = resolve_mode(words, field)[0]
    return _BY_WORDS.get(found, found)


def alike(name: str) -> str:
    """One spelling for all names of the same way to serve; words that name none stay as they are."""
    try:
        return preset_of(name)
    except InputError:
        return " ".join(name.casefold().split())
