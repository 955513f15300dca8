"""Rows of columns: which are distinct, and blocks of them by index. What makes large blocks cheap."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Column = npt.NDArray[np.float64] | npt.NDArray[np.int64]
Block = TypeVar("Block")
Other = TypeVar("Other")

# Odd multipliers of a multiply-xor hash; any odd 64-bit constants do.
_MULTIPLIERS = np.random.default_rng(20261129).integers(1, 2**63, size=64, dtype=np.uint64) * np.uint64(
    2
) + np.uint64(1)
# Rows up to which sorting hashes costs less than packing.
_FEW_ROWS = 1000
# Codes of packed columns stay below this, so that they never overflow.
_MOST_CODES = 2**62
# Integers that span no more are numbered by a table where there are many rows, unless they span a few values only:
# small codes again. A table has so many entries a row at most: of values that are to be numbered (beyond that hashing
# costs less), and of codes that index it.
_MOST_WIDTH, _FEW_VALUES, _MANY_ROWS, _MOST_NUMBERED, _MOST_ADDRESSES = 2**20, 256, 4096, 8, 4


def row_codes(table: FloatArray) -> npt.NDArray[np.uint64]:
    """A 64-bit code per row of ``table`` [n, k]; equal rows have equal codes, different ones almost surely not."""
    bits = np.ascontiguousarray(table + 0.0).view(np.uint64)
    codes = np.zeros(len(table), dtype=np.uint64)
    for column in range(table.shape[1]):
        codes = (codes ^ bits[:, column]) * _MULTIPLIERS[column]
        codes ^= codes >> np.uint64(29)
    return codes


def distinct_keys(*columns: Column) -> tuple[list[tuple[float, ...]], IntArray]:
    """The distinct rows of some columns [n] as tuples, and for every row the index of its distinct one."""
    first, which = distinct_rows(columns)
    return list(zip(*(column[first].astype(np.float64).tolist() for column in columns), strict=True)), which


def distinct_rows(columns: Sequence[Column]) -> tuple[IntArray, IntArray]:
    """Indices of the first of every distinct row of ``columns`` [n] each, and each row's number among the distinct.

    In the order in which they appear.
    """
    n = len(columns[0])
    leader = _leaders_of_few(columns) if n <= _FEW_ROWS and len(columns) > 1 else None
    if leader is None:
        leader = _leaders(columns)
    itself = np.arange(n)
    first = np.flatnonzero(leader == itself)
    if len(first) == n:
        return itself, itself
    number = np.empty_like(itself)
    number[first] = np.arange(len(first))
    return first, number[leader]


def _leaders(columns: Sequence[Column]) -> IntArray:
    """The first row that is equal to each, [n].

    Columns are packed into one exact integer, which indexes a table where it is small and is hashed otherwise: tenfold
    cheaper than sorting rows.
    """
    code, size = _packed(columns)
    n = len(code)
    if size > _MOST_ADDRESSES * n:
        code, found = pd.factorize(code)
        size = len(found)
    first = np.empty(size, dtype=np.int64)
    first[code[::-1]] = np.arange(n - 1, -1, -1)
    leader: IntArray = first[code]
    return leader


def _leaders_of_few(columns: Sequence[Column]) -> IntArray | None:
    """As :func:`_leaders`, by sorting hashes of all columns at once: several times cheaper for few rows.

    None where different rows have equal hashes (or a value is no number), which is checked.
    """
    table = np.array(columns, dtype=np.float64)
    table += 0.0  # one of both zeros
    code = _hashed(table)
    order = np.argsort(code, kind="stable")
    new = np.append(True, code[order][1:] != code[order][:-1])[: len(order)]
    leader = np.empty(len(order), dtype=np.int64)
    leader[order] = order[new][np.cumsum(new) - 1]
    return leader if (table[:, leader] == table).all() else None


def _hashed(table: FloatArray) -> npt.NDArray[np.uint64]:
    """A 64-bit hash per column of ``table`` [k, n], the sum of the mixed bits of its values.

    All at once: cheaper than :func:`row_codes` for few rows, dearer for many.
    """
    one, other = (multipliers[: len(table), None] for multipliers in (_MULTIPLIERS, _MULTIPLIERS[::-1]))
    mixed = table.view(np.uint64) * one
    mixed ^= mixed >> np.uint64(29)
    mixed *= other
    code: npt.NDArray[np.uint64] = np.add.reduce(mixed, axis=0)
    return code


def is_constant(column: Column) -> bool:
    """Whether ``column`` [n] holds one value; false of none."""
    if len(column) < 2 or column.strides[0] == 0:
        return len(column) > 0
    first = column[0]
    return bool(column[-1] == first and column[len(column) // 2] == first and (column == first).all())


def _packed(columns: Sequence[Column]) -> tuple[IntArray, int]:
    """One integer a row, equal exactly where the rows of all ``columns`` are equal, [n]; and what it stays below."""
    code, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        if not len(code) or is_constant(column):
            continue
        digits, base = _digits(column)
        if size * base > _MOST_CODES:
            code, known = pd.factorize(code)
            size = len(known)
        elif size <= min(_MOST_WIDTH, _MOST_NUMBERED * len(code)) and size * base > _MOST_WIDTH:
            # Columns depend on each other: of all that their values admit, few rows of them are found.
            code, size = _numbered(code, size)
        if size == 1:
            code = digits
        else:
            code = code * base
            code += digits
        size *= base
    return code, size


def _numbered(code: IntArray, size: int) -> tuple[IntArray, int]:
    """``code`` [n] below ``size`` by the number of its values, in their order; and how many these are."""
    taken = np.zeros(size, dtype=bool)
    taken[code] = True
    number = np.cumsum(taken) - 1
    return number[code], int(number[-1]) + 1


def _digits(column: Column) -> tuple[IntArray, int]:
    """``column`` as integers from 0 up to a base, which is small where its values are few."""
    whole = _whole(column)
    if whole is not None:
        low = int(whole.min())
        width = int(whole.max()) - low + 1
        if width <= _MOST_WIDTH:
            many = len(column) >= _MANY_ROWS and _FEW_VALUES < width <= len(column)
            return _numbered(whole - low, width) if many else (whole - low, width)
    # NOTE: adding zero makes one of both zeros.
    bits = (column + 0.0).astype(np.float64, copy=False).view(np.int64)
    digits, known = pd.factorize(bits)
    return digits.astype(np.int64, copy=False), len(known)


def _whole(column: Column) -> IntArray | None:
    """``column`` as integers, None where some value is none; most columns of others show it in the first value."""
    if column.dtype.kind in "iu":
        return column.astype(np.int64, copy=False)
    with np.errstate(invalid="ignore"):
        if column[:1].astype(np.int64) != column[:1]:
            return None
        whole = column.astype(np.int64)
    return whole if (whole == column).all() else None


def ranges(start: IntArray, number: IntArray) -> tuple[IntArray, IntArray]:
    """The integers of [``start``, ``start + number``) [n], one range after the other, and which range each is of."""
    of = np.repeat(np.arange(len(number)), number)
    offset = np.arange(len(of)) - np.repeat(np.cumsum(number) - number, number)
    return (start[of] + offset).astype(np.int64), of.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Repeated(Generic[Block]):
    """The distinct rows of a block of columns, and which of them each row of the whole is [n]."""

    distinct: Block
    which: IntArray

    @classmethod
    def once(cls, block: Block, rows: int) -> "Repeated[Block]":
        """Each of the ``rows`` of ``block`` once."""
        return cls(block, np.arange(rows))

    def take(self, rows: IntArray) -> "Repeated[Block]":
        """The block at ``rows``; only distinct rows that occur in it are kept, so that none is taken for another."""
        first, which = distinct_rows([self.which[rows]])
        return Repeated(take_rows(self.distinct, self.which[rows][first]), which)

    def rows_of(self, other: Other) -> Other:
        """``other``, which has a row for each distinct one, repeated as the block is."""
        n = len(self.which)
        # The last row tells most blocks apart from those that repeat nothing.
        itself = n == 0 or (self.which[-1] == n - 1 and np.array_equal(self.which, np.arange(n)))
        return other if itself else take_rows(other, self.which)

    @property
    def rows(self) -> Block:
        """The whole block."""
        return self.rows_of(self.distinct)


def take_rows(block: Block, rows: IntArray) -> Block:
    """``block`` at ``rows``: an array [n, …], a tuple, dict or dataclass of such blocks; other things stay."""
    taken: Any = block
    if isinstance(block, np.ndarray):
        # NOTE: several times faster than indexing for rows of few numbers.
        taken = np.take(block, rows, axis=0)
    elif isinstance(block, tuple):
        taken = tuple(take_rows(part, rows) for part in block)
    elif isinstance(block, dict):
        taken = {name: take_rows(part, rows) for name, part in block.items()}
    elif hasattr(block, "take"):
        taken = block.take(rows)
    elif is_dataclass(block) and not isinstance(block, type):
        taken = replace(block, **{f.name: take_rows(getattr(block, f.name), rows) for f in fields(block)})
    return cast("Block", taken)


def join_rows(parts: Sequence[Block]) -> Block:
    """One block of columns after the other: the counterpart of :func:`take_rows`."""
    first: Any = parts[0]
    joined: Any = first
    if isinstance(first, np.ndarray) and first.ndim:
        joined = np.concatenate(cast("Any", parts))
    elif isinstance(first, tuple):
        joined = tuple(join_rows(column) for column in zip(*cast("Any", parts), strict=True))
    elif hasattr(first, "concatenate"):
        joined = first.concatenate(parts)
    elif is_dataclass(first) and not isinstance(first, type):
        columns = {f.name: join_rows([getattr(part, f.name) for part in parts]) for f in fields(first)}
        joined = replace(first, **columns)
    return cast("Block", joined)
