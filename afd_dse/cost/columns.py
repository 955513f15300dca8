"""Candidates as columns: one row a fully specified deployment, one array a property."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import Column, is_constant

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
        count = int(rows.sum()) if rows.dtype == np.bool_ else len(rows)
        return Candidates(
            {
                name: column[rows] if column.strides[0] else _repeated(column, count)
                for name, column in self.columns.items()
            }
        )

    @property
    def compact(self) -> "Candidates":
        """The same candidates, columns of one value held once (read-only): what repeats and compares them is cheap."""
        return Candidates(
            {
                name: _repeated(column, len(column)) if is_constant(column) else column
                for name, column in self.columns.items()
            }
        )

    def replace(self, **columns: npt.ArrayLike) -> "Candidates":
        """The same candidates with some columns exchanged; scalars count for every row."""
        if len(self) == 1:
            return Candidates.of(**{**self.columns, **columns})
        new = dict(self.columns)
        for name, given in columns.items():
            column = np.broadcast_to(given, self.columns[name].shape)
            whole = name in INTEGER_COLUMNS
            new[name] = column.astype(np.int64) if whole else column.astype(np.float64)
        return Candidates(new)

    @staticmethod
    def concatenate(blocks: Sequence["Candidates"]) -> "Candidates":
        """One block after the other."""
        return Candidates({n: np.concatenate([b.columns[n] for b in blocks]) for n in ALL_COLUMNS})


def _repeated(column: Column, count: int) -> Column:
    """The first value of ``column`` [n] ``count`` times, held once."""
    repeated: Any = np.broadcast_to(column[:1].copy(), count)
    return cast("Column", repeated)
