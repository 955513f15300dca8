"""Typed reading of a foreign mapping: aliases, nested fields, every problem collected, none guessed away."""

import re
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from afd_dse.errors import Problem

_WHOLE = "a whole number, at least {}"


class Fields:
    """One level of a ``config.json`` and the level around it.

    ``inner`` is where a model's language part lies (``text_config`` or the file itself), ``outer`` the file;
    a field is looked up in ``inner`` first. A key with a dot descends one level (``attn_config.kv_n_heads``).
    ``null`` counts as absent, as Hugging Face writes it for options that are off.

    Readers never raise: what is wrong goes to ``problems`` and a harmless value comes back, so that one pass
    reports every bad field. Callers must stop when ``problems`` is not empty.
    """

    def __init__(
        self, inner: Mapping[str, object], outer: Mapping[str, object], inner_path: str, outer_path: str
    ) -> None:
        self.inner = inner
        self.outer = outer
        self.inner_path = inner_path
        self.outer_path = outer_path
        self.problems: list[Problem] = []

    def field(self, key: str) -> str:
        """Dotted path of ``key`` for a message."""
        first = key.split(".")[0]
        only_outside = first not in self.inner and first in self.outer
        return f"{self.outer_path if only_outside else self.inner_path}.{key}"

    def report(self, key: str, value: object, message: str, remedy: str) -> None:
        """Note a problem of ``key``."""
        self.problems.append(Problem(self.field(key), value, message, remedy))

    def raw(self, key: str) -> object:
        """What stands under ``key``, or None."""
        for level in (self.inner, self.outer):
            found = _descend(level, key)
            if found is not None:
                return found
        return None

    def has_key(self, key: str) -> bool:
        """Whether the file mentions ``key`` at all, be it as null."""
        return key in self.inner or key in self.outer

    def present(self, keys: Sequence[str]) -> list[str]:
        """Those of ``keys`` that have a value."""
        return [key for key in keys if self.raw(key) is not None]

    def whole(self, *keys: str, minimum: int = 1) -> int:
        """The whole number under the first present of ``keys``; absent or unfit is a problem."""
        found = self.optional_whole(*keys, minimum=minimum)
        if found is None and not self.present(keys):
            self.report(keys[0], None, "is missing", _missing_remedy(keys))
        return max(minimum, 1) if found is None else found

    def optional_whole(self, *keys: str, minimum: int = 0) -> int | None:
        """As :meth:`whole`, but absent is None; several aliases must agree."""
        present = self.present(keys)
        values = {key: self.raw(key) for key in present}
        for key, value in values.items():
            if not is_whole(value) or value < minimum:
                self.report(key, value, "is not usable", f"it must be {_WHOLE.format(minimum)}")
                return None
        numbers = [value for value in values.values() if is_whole(value)]
        if len(set(numbers)) > 1:
            self.report(
                present[0], numbers[0], f"contradicts {present[1]}", "give one of them, or the same value"
            )
        return numbers[0] if numbers else None

    def flag(self, key: str, default: bool) -> bool:
        """A true/false option whose default is the family's own."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.report(key, value, "is not usable", "it must be true or false")
            return default
        return value

    def sequence(self, key: str, length: int | None = None) -> list[object] | None:
        """A list under ``key`` (of ``length`` entries, where given), or None when absent."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            self.report(key, value, "is not usable", "it must be a list")
            return None
        if length is not None and len(value) != length:
            self.report(
                key, f"{len(value)} entries", "has the wrong length", f"it needs one entry a layer, {length}"
            )
            return None
        return list(value)

    def indices(self, key: str, layers: int) -> set[int] | None:
        """Layer numbers under ``key``: a list, or text such as ``"4,5,6"``; None when absent."""
        value = self.raw(key)
        if value is None:
            return None
        listed: object = value
        if isinstance(value, str) and re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*", value):
            listed = [int(item) for item in value.split(",")]
        if isinstance(listed, list | tuple) and all(is_whole(item) and 0 <= item < layers for item in listed):
            return set(listed)
        self.report(key, value, "is not usable", f"it must list layers by number, 0 to {layers - 1}")
        return None


def is_whole(value: object) -> TypeGuard[int]:
    """Whether ``value`` is a whole number (a bool is none)."""
    return isinstance(value, int) and not isinstance(value, bool)


def _descend(level: Mapping[str, object], key: str) -> object:
    found: object = level
    for part in key.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def _missing_remedy(keys: Sequence[str]) -> str:
    if len(keys) == 1:
        return "the model's shape depends on it: add it"
    return f"the model's shape depends on it: add it (also read as {', '.join(keys[1:])})"
