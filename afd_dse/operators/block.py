"""What whole-block attention tables share: projections, launch overhead, and swapping the GEMMs' data type."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from afd_dse.architecture.model import Mla
from afd_dse.operators.attention import OperatorSource
from afd_dse.operators.borrowing import alike
from afd_dse.operators.latency import FloatArray, Latency, Provenance
from afd_dse.operators.store import load_table
from afd_dse.operators.surfaces import add
from afd_dse.operators.table_schema import FRAMEWORKS
from afd_dse.spec.accelerator import Accelerator

# Floors of whole-block decode tables that differ by less than this are differences of kernels.
LAUNCH_TOLERANCE_S = 10e-6

Shapes = Iterable[tuple[npt.ArrayLike, npt.ArrayLike]]
"""(n, k) of GEMMs."""


@dataclass(frozen=True, slots=True)
class BlockDtypes:
    """Data types of a block: its projections, its attention kernel, its cache."""

    gemm: str
    attention: str
    kv: str


def projections(
    mla: Mla, hidden: int, heads: FloatArray, *, context_phase: bool
) -> list[tuple[npt.ArrayLike, npt.ArrayLike]]:
    """(n, k) of the block's GEMMs with ``heads`` heads on this GPU; the down-projections are fused and not split.

    Prefill decompresses the latents into heads; decode absorbs that product (counted apart).
    """
    latent = mla.kv_rank + mla.rope_head_dim
    queries = heads * (mla.nope_head_dim + mla.rope_head_dim)
    found: list[tuple[npt.ArrayLike, npt.ArrayLike]] = (
        [(mla.query_rank + latent, hidden), (queries, mla.query_rank)]
        if mla.query_rank
        else [(queries + latent, hidden)]
    )
    if context_phase:
        found.append((heads * (mla.nope_head_dim + mla.v_head_dim), mla.kv_rank))
    found.append((hidden, heads * mla.v_head_dim))
    return found


def gemms(database: OperatorSource, dtype: str, tokens: FloatArray, shapes: Shapes) -> Latency:
    """The GEMMs one after another."""
    return add(*(database.gemm(dtype=dtype, m=tokens, n=n, k=k) for n, k in shapes))


def nearest_gemm_dtype(accelerator: Accelerator, dtype: str, measured: Collection[str]) -> str:
    """``dtype`` if measured, else the measured one whose kernels are most alike."""
    for one in (dtype, *alike(accelerator, dtype), "fp8_block", "bfloat16"):
        if one in measured:
            return one
    return min(measured)


def swap_projections(
    database: OperatorSource,
    latency: Latency,
    tokens: FloatArray,
    shapes: Shapes,
    measured_dtype: str,
    dtype: str,
    least: FloatArray,
) -> Latency:
    """A block measured with ``measured_dtype`` GEMMs as it is with ``dtype``: the difference of the GEMMs; BORROWED.

    Never below ``least``, the speed of light of the block asked for.
    """
    pairs = list(shapes)
    change = (
        gemms(database, dtype, tokens, pairs).seconds - gemms(database, measured_dtype, tokens, pairs).seconds
    )
    provenance = np.maximum(latency.provenance, Provenance.BORROWED).astype(np.int8)
    return Latency(np.maximum(latency.seconds + change, least), provenance)


@lru_cache(maxsize=64)
def _floors(accelerator: str, op: str, model: str) -> dict[str, float]:
    """Shortest latency in seconds by framework: one sequence, the head counts that all frameworks share."""
    found = {}
    for framework in FRAMEWORKS:
        table = load_table(accelerator, framework, op)
        if table is not None:
            rows = table[(table["model"] == model) & (table["batch_size"] == 1) & (table["num_heads"] == 16)]
            if len(rows):
                found[framework] = float(rows["latency_ms"].min()) * 1e-3
    return found


def launch_overhead(accelerator: Accelerator, framework: str, op: str, model: str) -> float:
    """Seconds of host launches in every row of a whole-block decode table; CUDA graphs hide them in production.

    Rows of vLLM (and of TensorRT-LLM's DSA on Hopper) lie a constant above those of the other frameworks, whatever the
    head count, batch or context: vLLM's MLA rows by 31 to 46 µs on GB200 and B300 but by none on B200, the same
    silicon. The constant is the distance of the floors at 16 heads.
    """
    floors = _floors(str(accelerator.tables), op, model)
    if framework not in floors:
        return 0.0
    above = floors[framework] - min(floors.values())
    return above if above > LAUNCH_TOLERANCE_S else 0.0
