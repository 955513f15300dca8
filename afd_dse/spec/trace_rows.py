"""Rows of a trace file: CSV with comma, semicolon or tab, JSON lines or a JSON list, each plain or gzipped."""

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from afd_dse.errors import InputError, Problem

_GZIP = b"\x1f\x8b"
_DELIMITERS = ",;\t"
MOST_TOKENS = 1e9
# A bare number this large is no offset into a trace but seconds since 1970; as milliseconds it would be 11 days.
_EPOCH_S = (1e9, 1e11)
# Date and time, fraction with any number of digits (Azure has 7), zone.
_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?)(?:\.(\d+))?\s*(Z|[+-]\d\d(?::?\d\d)?)?", re.IGNORECASE
)
_TIMES = (
    "give milliseconds, seconds in a column timestamp_s, or dates like 2024-05-10 00:00:01.25 in every row"
)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a trace; ``columns`` maps plain names (lower case, no blanks, no underscores) to the file's."""

    path: Path
    field: str
    rows: list[Mapping[str, Any]]
    columns: dict[str, str]

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, names: Iterable[str]) -> str | None:
        """The file's name of the first of ``names`` that it has."""
        return next((self.columns[key] for name in names if (key := _plain(name)) in self.columns), None)

    def fail(self, message: str, remedy: str) -> NoReturn:
        """Raise :class:`InputError` about the file."""
        fail(self.field, self.path, message, remedy)

    def number(self, index: int, column: str, remedy: str = "give a finite number in every row") -> float:
        """The number in a row; an error names row, column and what is there."""
        value = self.rows[index].get(column)
        try:
            found = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            found = math.nan
        if not math.isfinite(found):
            self.fail(f"request {index + 1}: {column} is {value!r}", remedy)
        return found

    def tokens(self, column: str) -> npt.NDArray[np.float64]:
        """Token counts, not negative."""
        values = np.array([self.number(index, column) for index in range(len(self))])
        wrong = np.flatnonzero((values < 0) | (values > MOST_TOKENS))
        if len(wrong):
            shown = self.rows[int(wrong[0])].get(column)
            what = "negative" if values[wrong[0]] < 0 else f"more than {MOST_TOKENS:,.0f}"
            self.fail(f"request {wrong[0] + 1}: {column} is {shown!r}, {what}", "give tokens of each request")
        return values

    def times(self, column: str) -> npt.NDArray[np.float64]:
        """Arrival times in seconds from an arbitrary origin: dates with or without zone, or bare numbers."""
        instants = [_instant(row.get(column)) for row in self.rows]
        if all(found is None for found in instants):
            values = np.array([self.number(index, column, _TIMES) for index in range(len(self))])
            seconds = _plain(column).endswith("s") and not _plain(column).endswith("ms")
            first = float(values.min())
            return values if seconds or _EPOCH_S[0] <= first < _EPOCH_S[1] else 1e-3 * values
        times = []
        for index, found in enumerate(instants):
            if found is None:
                value = self.rows[index].get(column)
                self.fail(f"request {index + 1}: {column} is {value!r}, others are dates", _TIMES)
            times.append(found)
        return np.array(times)


def read_rows(path: Path, field: str) -> Rows:
    """Read a trace file; lines without any value are left out.

    Raises :class:`InputError` naming ``field`` when the file is missing, malformed or empty.
    """
    remedy = "give a CSV or JSON-lines file with input_tokens, output_tokens and timestamp columns"
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(_GZIP) else content
        text = content.decode("utf-8-sig").lstrip()
        kind = text[:1]
        if kind == "[":
            rows = _json_list(text, path, field)
        else:
            rows = _json_rows(text, path, field) if kind == "{" else _csv_rows(text)
    except FileNotFoundError:
        fail(field, path, "the trace file does not exist", remedy)
    except UnicodeDecodeError:
        fail(field, path, "the trace file is not UTF-8 text", remedy)
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        fail(field, path, f"unreadable trace ({error})", remedy)
    if not rows:
        fail(field, path, "the trace has no requests", "give one line a request")
    columns: dict[str, str] = {}
    for row in rows:
        for name in row:
            columns.setdefault(_plain(name), name)
    return Rows(path, field, rows, columns)


def fail(field: str, path: Path, message: str, remedy: str) -> NoReturn:
    """Raise :class:`InputError` about a file."""
    raise InputError(Problem(field, str(path), message, remedy))


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character not in "_ -")


def _csv_rows(text: str) -> list[Mapping[str, Any]]:
    head = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=head.count)
    rows = csv.DictReader(
        io.StringIO(text), delimiter=delimiter, skipinitialspace=True, restkey="(more)", restval=None
    )
    if rows.fieldnames is not None:
        rows.fieldnames = [name.strip() for name in rows.fieldnames]
    return [row for row in rows if any(isinstance(value, str) and value.strip() for value in row.values())]


def _json_rows(text: str, path: Path, field: str) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            fail(field, path, f"line {number}: malformed JSON ({error})", "write one JSON object a line")
        if not isinstance(row, dict):
            fail(field, path, f"line {number}: not an object", "write one JSON object a line")
        rows.append(row)
    return rows


def _json_list(text: str, path: Path, field: str) -> list[Mapping[str, Any]]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        fail(field, path, f"malformed JSON ({error})", "write a list of objects, or one object a line")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            fail(field, path, f"request {number}: not an object", "write a list of objects")
    return list(rows)


def _instant(value: object) -> float | None:
    """Seconds of a date and time, None for anything else. Without a zone it is taken as UTC."""
    if not isinstance(value, str) or (found := _INSTANT.fullmatch(value.strip())) is None:
        return None
    whole, fraction, zone = found.groups()
    try:
        # NOTE: local time would jump with daylight saving.
        moment = datetime.fromisoformat(whole + (zone or "Z").upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
