"""The file of published results: one row a result, its inputs as JSON."""

import csv
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from afd_dse.architecture.catalogue import load_model
from afd_dse.architecture.model import ModelArchitecture
from afd_dse.errors import InputError, Problem
from afd_dse.literature.units import SECONDS, written

COLUMNS = ("id", "evaluator", "inputs", "expected")
OPTIONAL = ("system", "quantity", "unit", "tolerance", "kind", "source", "note")


@dataclass(slots=True)
class Inputs:
    """The inputs of one row, read by name; ``used`` remembers which were asked for."""

    values: Mapping[str, Any]
    used: set[str] = field(default_factory=set)

    def has(self, name: str) -> bool:
        """Whether the row states ``name``."""
        return self.values.get(name) is not None

    def raw(self, *names: str, default: Any = None) -> Any:
        """The value of the first of ``names`` that is stated, else ``default``; a problem where there is none."""
        for name in names:
            if self.has(name):
                self.used.add(name)
                return self.values[name]
        if default is None:
            raise InputError(
                Problem(f"inputs.{names[0]}", None, "is missing", "state it in the row's inputs")
            )
        return default

    def number(self, *names: str, default: float | None = None) -> float:
        """A finite number, also as text: ``"8"``, ``"1,979"``, ``"4K"`` (of 1,024)."""
        value = self.raw(*names, default=default)
        found = finite(value)
        if found is None:
            raise InputError(Problem(f"inputs.{names[0]}", value, "is not a number", "give a finite number"))
        return found

    def positive(self, *names: str, default: float | None = None) -> float:
        """A number above zero."""
        value = self.number(*names, default=default)
        if value <= 0:
            raise InputError(
                Problem(f"inputs.{names[0]}", value, "must be above 0", "give a positive number")
            )
        return value

    def whole(self, *names: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value = self.positive(*names, default=default)
        if not value.is_integer():
            raise InputError(Problem(f"inputs.{names[0]}", value, "is not whole", "give a whole number"))
        return int(value)

    def numbers(self, *names: str, default: list[float] | None = None) -> list[float]:
        """One number or a list of them."""
        value = self.raw(*names, default=default)
        listed = value if isinstance(value, list) else [value]
        found = [number for number in map(finite, listed) if number is not None]
        if not found or len(found) < len(listed):
            raise InputError(Problem(f"inputs.{names[0]}", value, "is not a list of numbers", "give numbers"))
        return found

    def at_least_zero(self, *names: str, default: list[float] | None = None) -> list[float]:
        """One number or a list of them, none negative."""
        values = self.numbers(*names, default=default)
        if min(values) < 0:
            raise InputError(Problem(f"inputs.{names[0]}", values, "must not be negative", "count from 0"))
        return values

    def counts(self, *names: str) -> list[float]:
        """One positive number or a list of them."""
        values = self.numbers(*names)
        if min(values) <= 0:
            raise InputError(
                Problem(f"inputs.{names[0]}", values, "must be above 0", "give positive numbers")
            )
        return values

    def items(self, *names: str, default: list[Any] | None = None) -> list[Any]:
        """A list of anything that is not empty; a single text is a list of one."""
        value = self.raw(*names, default=default)
        if isinstance(value, str) and value:
            return [value]
        if not isinstance(value, list) or not value:
            raise InputError(Problem(f"inputs.{names[0]}", value, "is not a list", "give [one, another, …]"))
        return value

    def scaled(self, units: Mapping[str, float], default: float | None = None) -> float:
        """A positive quantity in SI under the first of several names, each with its unit: ``{"hbm_tb_s": 1e12}``.

        A unit behind the value (``"864 GB/s"``) counts instead of the name's.
        """
        for name, unit in units.items():
            if self.has(name):
                return written(self.raw(name)) or self.positive(name) * unit
        if default is None:
            raise InputError(
                Problem(f"inputs.{next(iter(units))}", None, "is missing", f"state one of {', '.join(units)}")
            )
        return default

    def text(self, *names: str, default: str | None = None) -> str:
        """A text."""
        value = self.raw(*names, default=default)
        if not isinstance(value, str):
            raise InputError(Problem(f"inputs.{names[0]}", value, "is not a text", "put it in quotes"))
        return value

    def texts(self, *names: str, default: list[str] | None = None) -> list[str]:
        """One text or a list of them."""
        found = self.items(*names, default=default)
        if not all(isinstance(value, str) for value in found):
            raise InputError(Problem(f"inputs.{names[0]}", found, "is not a list of names", "name each one"))
        return found

    def mapping(self, *names: str) -> Mapping[str, Any]:
        """A mapping by name."""
        value = self.raw(*names)
        if not isinstance(value, Mapping) or not value:
            raise InputError(Problem(f"inputs.{names[0]}", value, "is not a mapping", "give {name: value}"))
        return value

    def in_one_unit(self, *stems: str) -> "Inputs":
        """These inputs with the ending of a time (``_us``) off the names that begin with ``stems``.

        A problem where two of them are in different units.
        """
        ends = {
            name: name[len(stem) + 1 :]
            for name in self.values
            for stem in stems
            if name.startswith(f"{stem}_") and name[len(stem) + 1 :] in SECONDS
        }
        if len(set(ends.values())) > 1:
            raise InputError(
                Problem(f"inputs.{next(iter(ends))}", list(ends), "are in different units", "use one unit")
            )
        self.used.update(ends)
        plain = {
            name.removesuffix(f"_{ends[name]}") if name in ends else name: x
            for name, x in self.values.items()
        }
        return Inputs(plain, self.used)

    def nics(self, name: str) -> float:
        """Bytes/s of the NICs of a node, written ``8x400Gb/s``."""
        text = self.text(name)
        found = re.fullmatch(r"\s*(\d+)\s*[x×]\s*(\d+(?:\.\d+)?)\s*(Gb/s|Gbps|GB/s)\s*", text)
        if found is None:
            raise InputError(Problem(f"inputs.{name}", text, "is not understood", "write e.g. 8x400Gb/s"))
        per_byte = 1.0 if found.group(3) == "GB/s" else 8.0
        return int(found.group(1)) * float(found.group(2)) * 1e9 / per_byte

    def part(self, name: str, value: object) -> "Inputs":
        """A mapping inside, as inputs of its own."""
        if not isinstance(value, Mapping):
            raise InputError(Problem(f"inputs.{name}", value, "is not a mapping", "give {name: value}"))
        return Inputs(value)

    def model(self, default: str | None = None) -> ModelArchitecture:
        """The model: catalogue name or an inline ``config.json``."""
        value = self.raw("model", default=default)
        if not isinstance(value, str | Mapping):
            raise InputError(Problem("inputs.model", value, "is not a model", "give a name or a mapping"))
        return load_model(value)

    @property
    def unused(self) -> list[str]:
        """Inputs that nothing asked for."""
        return [name for name in self.values if name not in self.used]


@dataclass(frozen=True, slots=True)
class Row:
    """One published result."""

    id: str
    evaluator: str
    quantity: str
    inputs: Inputs
    expected: str
    tolerance: str
    kind: str

    def stated(self, pattern: str) -> re.Match[str] | None:
        """Where the row's description states something that its inputs leave out."""
        return re.search(pattern, self.quantity, re.IGNORECASE)

    def listed(self, names: str, pattern: str, default: list[float] | None = None) -> list[float]:
        """Numbers from an input of ``names`` (blanks between), else from the description after ``pattern``."""
        spelled = names.split()
        if any(map(self.inputs.has, spelled)):
            return self.inputs.numbers(*spelled)
        found = self.stated(pattern + r"\s*=?\s*((?:\d+(?:\.\d+)?K?\s*(?:,|;|and)?\s*)+)")
        if found is not None:
            return [number(text) for text in re.findall(r"\d+(?:\.\d+)?K?", found.group(1))]
        return self.inputs.numbers(*spelled, default=default)


def number(text: str) -> float:
    """``8192`` and ``8K`` (of 1,024)."""
    return float(text[:-1]) * 1024.0 if text.endswith(("K", "k")) else float(text)


def finite(value: object) -> float | None:
    """A finite number, or a text that is one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = number(value.strip().replace(",", "")) if isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row whose inputs cannot be read, and why."""

    id: str
    expected: str
    reason: str


def read_rows(path: str | Path) -> list[Row | Unreadable]:
    """The rows of a CSV file in its order.

    Raises InputError when the file cannot be read or lacks a column; a row that is broken is returned as such.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or []
            missing = [name for name in COLUMNS if name not in header]
            if missing:
                remedy = f"a row needs {', '.join(COLUMNS)}; the rest is optional: {', '.join(OPTIONAL)}"
                raise InputError(
                    [Problem(f"rows.{name}", None, "no such column", remedy) for name in missing]
                )
            return [_row(record, line) for line, record in enumerate(reader, start=2)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(
            Problem("rows", str(path), f"cannot be read ({reason})", "name a CSV file of published results")
        ) from error


def _row(record: Mapping[str, Any], line: int) -> Row | Unreadable:
    text = {name: str(record.get(name) or "").strip() for name in (*COLUMNS, *OPTIONAL)}
    identity = text["id"] or f"line {line}"
    if None in record:
        return Unreadable(identity, text["expected"], "more fields than columns: put JSON in quotes")
    try:
        inputs = json.loads(text["inputs"] or "{}")
    except json.JSONDecodeError as error:
        return Unreadable(identity, text["expected"], f"inputs: not JSON ({error})")
    if not isinstance(inputs, dict):
        return Unreadable(identity, text["expected"], "inputs: must be a JSON object")
    return Row(
        id=identity,
        evaluator=text["evaluator"],
        quantity=text["quantity"],
        inputs=Inputs(inputs),
        expected=text["expected"],
        tolerance=text["tolerance"],
        kind=text["kind"],
    )
