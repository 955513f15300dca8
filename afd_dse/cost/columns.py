"""Candidates as columns: one row a fully specified deployment, one array a property."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afd_dse.operators.latency import FloatArray, IntArray

Column = npt.NDArray[np.float64] | npt.NDArray[np.int64]

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
    "micro_batches",
    "replicas",
)
INTEGER_COLUMNS = ("partition", "policy", *(f"{phase}_{name}" for phase in PHASES for name in PHASE_FIELDS))
# Decode sequences in flight per attention rank (mean), and tokens that one prefill or mixed step may carry per rank.
FLOAT_COLUMNS = ("batch_size", "chunk_tokens")
ALL_COLUMNS = (*INTEGER_COLUMNS, *FLOAT_COLUMNS)

# Sharing policies of a group that serves both phases (column "policy").
CHUNKED, PRIORITIZED = 0, 1
POLICIES = ("chunked", "prioritized")


@dataclass(frozen=True, slots=True)
class Candidates:
    """A block of n candidates; ``columns`` maps every name of :data:`ALL_COLUMNS` to an array [n]."""

    columns: Mapping[str, Column]

    @classmethod
    def of(cls, **columns: npt.ArrayLike) -> "Candidates":
        """Build from arrays or scalars (broadcast); a missing or unknown column is a ``KeyError``."""
        unknown = set(columns) - set(ALL_COLUMNS)
        if unknown:
            raise KeyError(f"unknown columns {sorted(unknown)}")
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(columns[name])) for name in ALL_COLUMNS))
        kinds = [np.int64] * len(INTEGER_COLUMNS) + [np.float64] * len(FLOAT_COLUMNS)
        return cls({n: np.ascontiguousarray(a, dtype=k) for n, a, k in zip(ALL_COLUMNS, arrays, kinds, strict=True)})

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


def distinct(columns: Mapping[str, Column]) -> tuple[dict[str, FloatArray], IntArray]:
    """The distinct rows of some columns, and for every row the index of its distinct one.

    Station times depend on few columns: looking up the distinct rows only is what makes large blocks cheap.
    """
    names = list(columns)
    codes = np.zeros(len(next(iter(columns.values()))), dtype=np.int64)
    for name in names:
        values, inverse = np.unique(columns[name], return_inverse=True)
        codes, size = codes * len(values) + inverse.reshape(-1), len(values)
        if size and codes.size and codes.max() > 2**40:
            codes = np.unique(codes, return_inverse=True)[1].reshape(-1).astype(np.int64)
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    rows = {name: np.asarray(columns[name], dtype=np.float64)[first] for name in names}
    return rows, inverse.reshape(-1).astype(np.int64)
