"""Candidates as columns: one row a fully specified deployment, one array a property."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from afd_dse.operators.latency import FloatArray, IntArray

Column = npt.NDArray[np.float64] | npt.NDArray[np.int64]
Block = TypeVar("Block")
Other = TypeVar("Other")

PHASES = ("prefill", "decode")
# Per phase: where attention and FFN of the phase live, how each is cut, and how often the unit is repeated.
PHASE_FIELDS = (
    "attention_pool",
    "ffn_pool",
    "tp",
    "dp",
    "cp",
    "pp",
    "moe_tp",
    "ep",
    "redundant",
    "expert_policy",
    "micro_batches",
    "replicas",
)
INTEGER_COLUMNS = ("partition", "policy", *(f"{phase}_{name}" for phase in PHASES for name in PHASE_FIELDS))
# Decode sequences in flight per attention rank (mean), and tokens that one prefill or mixed step may carry per rank.
# Share of the SMs that decode gets on GPUs that both phases use at once (policy "tile_shared").
FLOAT_COLUMNS = ("batch_size", "chunk_tokens", "decode_share")
ALL_COLUMNS = (*INTEGER_COLUMNS, *FLOAT_COLUMNS)
# Columns that may be left out, and what that means.
DEFAULTS = {f"{phase}_expert_policy": 0 for phase in PHASES} | {"decode_share": 1}

# Sharing policies of a group that serves both phases (column "policy"). Where the phases share only one side, they
# can't share steps: 0 then means that decode has priority at kernel boundaries.
CHUNKED, PRIORITIZED, TILE_SHARED = 0, 1, 2
POLICIES = ("chunked", "prioritized", "tile_shared")
DECODE_PRIORITY = "decode_priority"
# How an expert group places experts and their copies (columns "prefill_expert_policy", "decode_expert_policy").
EXPERT_POLICIES = ("static", "history", "prefetch", "prefetch_overlapped")


@dataclass(frozen=True, slots=True)
class Candidates:
    """A block of n candidates; ``columns`` maps every name of :data:`ALL_COLUMNS` to an array [n]."""

    columns: Mapping[str, Column]

    @classmethod
    def of(cls, **columns: npt.ArrayLike) -> "Candidates":
        """Build from arrays or scalars (broadcast); an unknown column, or one without default, is a ``KeyError``."""
        unknown = set(columns) - set(ALL_COLUMNS)
        if unknown:
            raise KeyError(f"unknown columns {sorted(unknown)}")
        given = DEFAULTS | columns
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(given[name])) for name in ALL_COLUMNS))
        found: dict[str, Column] = {}
        for name, array in zip(ALL_COLUMNS, arrays, strict=True):
            whole = name in INTEGER_COLUMNS
            found[name] = array.astype(np.int64) if whole else array.astype(np.float64)
        return cls(found)

    def __len__(self) -> int:
        return len(self.columns["partition"])

    def integer(self, name: str) -> IntArray:
        """An integer column."""
        column: IntArray = self.columns[name].astype(np.int64, copy=False)
        return column

    def number(self, name: str) -> FloatArray:
        """A column as floats."""
        column: FloatArray = self.columns[name].astype(np.float64, copy=False)
        return column

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> "Candidates":
        """The candidates at ``rows`` (indices or mask)."""
        return Candidates({name: column[rows] for name, column in self.columns.items()})

    def replace(self, **columns: npt.ArrayLike) -> "Candidates":
        """The same candidates with some columns exchanged."""
        return Candidates.of(**{**self.columns, **columns})

    @staticmethod
    def concatenate(blocks: Sequence["Candidates"]) -> "Candidates":
        """One block after the other."""
        return Candidates({n: np.concatenate([b.columns[n] for b in blocks]) for n in ALL_COLUMNS})


# Odd multipliers of a multiply-xor hash; any odd 64-bit constants do.
_MULTIPLIERS = np.random.default_rng(20261129).integers(1, 2**63, size=32, dtype=np.uint64) * np.uint64(
    2
) + np.uint64(1)
# Codes of packed columns stay below this, so that they never overflow.
_MOST_CODES = 2**62


def row_codes(table: FloatArray) -> npt.NDArray[np.uint64]:
    """A 64-bit code per row of ``table`` [n, k]; equal rows have equal codes, different ones almost surely not."""
    bits = np.ascontiguousarray(table + 0.0).view(np.uint64)
    codes = np.zeros(len(table), dtype=np.uint64)
    for column in range(table.shape[1]):
        codes = (codes ^ bits[:, column]) * _MULTIPLIERS[column]
        codes ^= codes >> np.uint64(29)
    return codes


def distinct(columns: Mapping[str, Column]) -> tuple[dict[str, FloatArray], IntArray]:
    """The distinct rows of some columns, and for every row the index of its distinct one.

    Station times depend on few columns: looking up the distinct rows only is what makes large blocks cheap.
    """
    first, inverse = distinct_rows(list(columns.values()))
    return {name: np.asarray(column, dtype=np.float64)[first] for name, column in columns.items()}, inverse


def distinct_rows(columns: Sequence[Column]) -> tuple[IntArray, IntArray]:
    """Indices of the first of every distinct row of ``columns`` [n] each, and each row's number among the distinct.

    In the order in which they appear. Columns are packed into one exact integer, which is hashed: tenfold cheaper than
    sorting rows.
    """
    inverse, found = pd.factorize(_packed(columns))
    first = np.empty(len(found), dtype=np.int64)
    first[inverse[::-1]] = np.arange(len(inverse) - 1, -1, -1)
    return first, inverse.astype(np.int64, copy=False)


def _packed(columns: Sequence[Column]) -> IntArray:
    """One integer a row, equal exactly where the rows of all ``columns`` are equal, [n]."""
    code, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    if not len(code):
        return code
    for column in columns:
        if column.strides[0] == 0 or (column == column[0]).all():
            continue
        digits, base = _digits(column)
        if size * base > _MOST_CODES:
            code, known = pd.factorize(code)
            size = len(known)
        code, size = code * base + digits, size * base
    return code


def _digits(column: Column) -> tuple[IntArray, int]:
    """``column`` as integers from 0 up to a base."""
    if column.dtype.kind in "iu":
        low, high = int(column.min()), int(column.max())
        if high - low < 2**20:
            return np.asarray(column, dtype=np.int64) - low, high - low + 1
    # NOTE: adding zero makes one of both zeros.
    bits = (column + 0.0).astype(np.float64, copy=False).view(np.int64)
    digits, known = pd.factorize(bits)
    return digits.astype(np.int64, copy=False), len(known)


@dataclass(frozen=True, slots=True)
class Repeated(Generic[Block]):
    """The distinct rows of a block of columns, and which of them each row of the whole is [n]."""

    distinct: Block
    which: IntArray

    def take(self, rows: IntArray) -> "Repeated[Block]":
        """The block at ``rows``."""
        return Repeated(self.distinct, self.which[rows])

    def rows_of(self, other: Other) -> Other:
        """``other``, which has a row for each distinct one, repeated as the block is."""
        itself = np.array_equal(self.which, np.arange(len(self.which)))
        return other if itself else take_rows(other, self.which)

    @property
    def rows(self) -> Block:
        """The whole block."""
        return self.rows_of(self.distinct)


def take_rows(block: Block, rows: IntArray) -> Block:
    """``block`` at ``rows``: an array [n, …], a tuple or dataclass of such blocks; anything else stays as it is."""
    taken: Any = block
    if isinstance(block, np.ndarray):
        taken = block[rows]
    elif isinstance(block, tuple):
        taken = tuple(take_rows(part, rows) for part in block)
    elif hasattr(block, "take"):
        taken = block.take(rows)
    elif is_dataclass(block) and not isinstance(block, type):
        taken = replace(block, **{f.name: take_rows(getattr(block, f.name), rows) for f in fields(block)})
    return cast("Block", taken)
