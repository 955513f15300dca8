"""Request traces: what a job needs of them, read from CSV or JSON lines (Azure's and Mooncake's columns, or plain)."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from afd_dse.spec.trace_rows import Rows, read_rows

# Accepted column names, case, blanks and underscores apart: plain, Azure LLM inference traces, Mooncake traces.
INPUT_COLUMNS = ("input_tokens", "ContextTokens", "input_length", "prompt_tokens")
OUTPUT_COLUMNS = ("output_tokens", "GeneratedTokens", "output_length", "completion_tokens")
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

    A bare numeric ``timestamp`` is in milliseconds, as in Mooncake's traces, or seconds since 1970; text is a date and
    time. Raises :class:`InputError` naming ``field`` when the file is missing, malformed or has no usable column.
    """
    try:
        state = path.stat()
    except OSError:
        read_rows(path, field)  # says what is wrong with it
        raise
    return _read(path, state.st_mtime_ns, state.st_size, field)


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
    rows = read_rows(path, field)
    lengths = []
    for names in (INPUT_COLUMNS, OUTPUT_COLUMNS):
        column = rows.column(names)
        if column is None:
            rows.fail(f"the trace has no column {names[0]}", "give both lengths of every request")
        # A prompt or an answer of no tokens still costs a step.
        lengths.append(np.maximum(np.rint(rows.tokens(column)), 1.0).astype(np.int64))
    column = rows.column(TIME_COLUMNS)
    blocks = tuple(_blocks(rows, index) for index in range(len(rows)))
    held = blocks if any(blocks) else None
    if column is None:
        return TracedRequests(None, lengths[0], lengths[1], held)
    times = rows.times(column)
    order = np.argsort(times, kind="stable")
    if held is not None:
        held = tuple(held[index] for index in order)
    times = times[order] - times[order[0]]
    return TracedRequests(times, lengths[0][order], lengths[1][order], held)


def _blocks(rows: Rows, index: int) -> tuple[int, ...]:
    found = rows.rows[index].get("hash_ids") or ()
    if not isinstance(found, list | tuple) or not all(isinstance(value, int) for value in found):
        rows.fail(f"request {index + 1}: hash_ids is {found!r}", "give a list of whole numbers")
    return tuple(found)


@lru_cache(maxsize=32)
def _read(path: Path, modified: int, size: int, field: str) -> Trace:
    rows = read_rows(path, field)
    inputs, outputs, times = map(rows.column, (INPUT_COLUMNS, OUTPUT_COLUMNS, TIME_COLUMNS))
    if inputs is None and outputs is None and times is None:
        found = ", ".join(rows.columns.values())
        rows.fail(f"no known column among {found}", "name them input_tokens, output_tokens, timestamp")
    return Trace(
        requests=len(rows),
        input_tokens=_tokens(rows, inputs),
        output_tokens=_tokens(rows, outputs),
        interarrival_s=_interarrival(rows, times),
    )


def _tokens(rows: Rows, column: str | None) -> Statistics | None:
    if column is None:
        return None
    values = rows.tokens(column)
    if values.mean() < 1:
        rows.fail(f"column {column}: negative or zero tokens", "give at least one token a request")
    return Statistics(float(values.mean()), float(values.std() / values.mean()))


def _interarrival(rows: Rows, column: str | None) -> Statistics | None:
    if column is None:
        return None
    times = rows.times(column)
    if len(times) < 2 or np.ptp(times) <= 0:
        rows.fail(f"column {column}: all requests arrive at once", "give two or more arrival times")
    gaps = np.diff(np.sort(times))
    return Statistics(float(gaps.mean()), float(gaps.std() / gaps.mean()))
