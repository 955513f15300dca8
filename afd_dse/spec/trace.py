"""Request traces: what a job needs of them, read from CSV or JSON lines (Azure's and Mooncake's columns, or plain)."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from afd_dse.errors import InputError, Problem

# Accepted column names, in lower case: plain, Azure LLM inference traces, Mooncake traces.
INPUT_COLUMNS = ("input_tokens", "contexttokens", "input_length", "prompt_tokens")
OUTPUT_COLUMNS = ("output_tokens", "generatedtokens", "output_length", "completion_tokens")
TIME_COLUMNS = ("timestamp_s", "arrival_s", "timestamp_ms", "timestamp")


@dataclass(frozen=True, slots=True)
class Statistics:
    """Mean and coefficient of variation (standard deviation / mean) of one column."""

    mean: float
    cv: float


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace in numbers: token lengths, and inter-arrival times in seconds, None where it has no such column."""

    requests: int
    input_tokens: Statistics | None
    output_tokens: Statistics | None
    interarrival_s: Statistics | None


def read_trace(path: Path, field: str = "trace") -> Trace:
    """Statistics of a trace file; a repeated call costs nothing while the file stays the same.

    A bare numeric ``timestamp`` is in milliseconds, as in Mooncake's traces; text is a date and time.
    Raises :class:`InputError` naming ``field`` when the file is missing, malformed or has no usable column.
    """
    remedy = "give a CSV or JSON-lines file with input_tokens, output_tokens and timestamp columns"
    try:
        state = path.stat()
        return _read(path, state.st_mtime_ns, state.st_size, field)
    except FileNotFoundError:
        raise InputError(Problem(field, str(path), "the trace file does not exist", remedy)) from None
    except UnicodeDecodeError:
        raise InputError(Problem(field, str(path), "the trace file is not UTF-8 text", remedy)) from None
    except (OSError, csv.Error) as error:
        raise InputError(Problem(field, str(path), f"unreadable trace ({error})", remedy)) from error


@dataclass(frozen=True, slots=True)
class TracedRequests:
    """The requests of a trace one by one, in order of arrival.

    ``arrival_s`` from the first one on, None where the trace has no times; ``blocks`` the hash ids of the blocks of
    each prompt (Mooncake), None where it has none.
    """

    arrival_s: npt.NDArray[np.float64] | None
    input_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    blocks: tuple[tuple[int, ...], ...] | None


def read_requests(path: Path, field: str = "trace") -> TracedRequests:
    """Every request of a trace file with both lengths.

    Raises :class:`InputError` naming ``field`` where the file is unusable or lacks a column of lengths.
    """
    read_trace(path, field)
    text = path.read_text(encoding="utf-8-sig")
    rows = list(_json_rows(text, path, field) if text.lstrip().startswith("{") else _csv_rows(text))
    columns = {column.lower(): column for column in rows[0]}
    lengths = []
    for names in (INPUT_COLUMNS, OUTPUT_COLUMNS):
        column = next((columns[name] for name in names if name in columns), None)
        if column is None:
            _fail(field, path, f"the trace has no column {names[0]}", "give both lengths of every request")
        values = [_number(row, column, index, path, field) for index, row in enumerate(rows)]
        # A prompt or an answer of no tokens still costs a step.
        lengths.append(np.maximum(np.rint(np.array(values)), 1.0).astype(np.int64))
    column = next((columns[name] for name in TIME_COLUMNS if name in columns), None)
    blocks = tuple(_blocks(row, index, path, field) for index, row in enumerate(rows))
    held = blocks if any(blocks) else None
    if column is None:
        return TracedRequests(None, lengths[0], lengths[1], held)
    times = _times(rows, column, path, field)
    order = np.argsort(times, kind="stable")
    if held is not None:
        held = tuple(held[index] for index in order)
    times = times[order] - times[order[0]]
    return TracedRequests(times, lengths[0][order], lengths[1][order], held)


def _blocks(row: Mapping[str, Any], index: int, path: Path, field: str) -> tuple[int, ...]:
    found = row.get("hash_ids") or ()
    if not isinstance(found, list | tuple) or not all(isinstance(value, int) for value in found):
        _fail(field, path, f"request {index + 1}: hash_ids is {found!r}", "give a list of whole numbers")
    return tuple(found)


@lru_cache(maxsize=32)
def _read(path: Path, modified: int, size: int, field: str) -> Trace:
    text = path.read_text(encoding="utf-8-sig")
    rows = list(_json_rows(text, path, field) if text.lstrip().startswith("{") else _csv_rows(text))
    if not rows:
        _fail(field, path, "the trace has no requests", "give one line a request")
    columns = {column.lower(): column for column in rows[0]}
    inputs, outputs, times = (
        next((columns[name] for name in names if name in columns), None)
        for names in (INPUT_COLUMNS, OUTPUT_COLUMNS, TIME_COLUMNS)
    )
    if inputs is None and outputs is None and times is None:
        found = ", ".join(columns)
        _fail(
            field, path, f"no known column among {found}", "name them input_tokens, output_tokens, timestamp"
        )
    return Trace(
        requests=len(rows),
        input_tokens=_tokens(rows, inputs, path, field),
        output_tokens=_tokens(rows, outputs, path, field),
        interarrival_s=_interarrival(rows, times, path, field),
    )


def _csv_rows(text: str) -> Iterable[Mapping[str, Any]]:
    return csv.DictReader(io.StringIO(text), skipinitialspace=True, restkey="(more)")


def _json_rows(text: str, path: Path, field: str) -> Iterable[Mapping[str, Any]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            _fail(field, path, f"line {number}: malformed JSON ({error})", "write one JSON object a line")
        if not isinstance(row, dict):
            _fail(field, path, f"line {number}: not an object", "write one JSON object a line")
        yield row


def _tokens(rows: list[Mapping[str, Any]], column: str | None, path: Path, field: str) -> Statistics | None:
    if column is None:
        return None
    values = np.array([_number(row, column, index, path, field) for index, row in enumerate(rows)])
    if (values < 0).any() or values.mean() < 1:
        _fail(field, path, f"column {column}: negative or zero tokens", "give at least one token a request")
    return Statistics(float(values.mean()), float(values.std() / values.mean()))


def _interarrival(
    rows: list[Mapping[str, Any]], column: str | None, path: Path, field: str
) -> Statistics | None:
    if column is None:
        return None
    times = _times(rows, column, path, field)
    if len(times) < 2 or np.ptp(times) <= 0:
        _fail(field, path, f"column {column}: all requests arrive at once", "give two or more arrival times")
    gaps = np.diff(np.sort(times))
    return Statistics(float(gaps.mean()), float(gaps.std() / gaps.mean()))


def _times(rows: list[Mapping[str, Any]], column: str, path: Path, field: str) -> npt.NDArray[np.float64]:
    """Arrival times in seconds from an arbitrary origin."""
    scale = 1.0 if column.lower().endswith("_s") else 1e-3
    return np.array(
        [
            stamp if (stamp := _instant(row.get(column))) is not None
            else scale * _number(row, column, index, path, field)
            for index, row in enumerate(rows)
        ]
    )  # fmt: skip


def _instant(value: object) -> float | None:
    """Seconds of a date and time, None for anything else; fractions may have any number of digits (Azure has 7)."""
    if not isinstance(value, str) or "-" not in value[1:]:
        return None
    whole, _, fraction = value.strip().partition(".")
    digits = "".join(character for character in fraction if character.isdigit())
    try:
        # NOTE: the zone does not matter for differences, but local time would jump with daylight saving.
        moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    except ValueError:
        return None
    return moment.timestamp() + (float(f"0.{digits}") if digits else 0.0)


def _number(row: Mapping[str, Any], column: str, index: int, path: Path, field: str) -> float:
    value = row.get(column)
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        _fail(field, path, f"request {index + 1}: {column} is {value!r}", "give a finite number in every row")
    return number


def _fail(field: str, path: Path, message: str, remedy: str) -> NoReturn:
    raise InputError(Problem(field, str(path), message, remedy))
