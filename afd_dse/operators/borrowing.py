"""Whose tables answer for an operator: the order in which measured efficiencies are borrowed, in one place."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afd_dse.operators.latency import FloatArray, Provenance, ProvenanceArray
from afd_dse.operators.store import load_table
from afd_dse.operators.table_schema import FRAMEWORKS
from afd_dse.spec.accelerator import Accelerator
from afd_dse.spec.catalogue import load_accelerator

# Accelerators with tables, nearest first: same die, then same generation, then the other generation.
_NEAREST = {
    "h100_sxm": ("h200_sxm", "b200_sxm", "gb200", "b300_sxm", "gb300"),
    "h200_sxm": ("h100_sxm", "b200_sxm", "gb200", "b300_sxm", "gb300"),
    "b200_sxm": ("gb200", "b300_sxm", "gb300", "h200_sxm", "h100_sxm"),
    "gb200": ("b200_sxm", "gb300", "b300_sxm", "h200_sxm", "h100_sxm"),
    "b300_sxm": ("gb300", "b200_sxm", "gb200", "h200_sxm", "h100_sxm"),
    "gb300": ("b300_sxm", "gb200", "b200_sxm", "h200_sxm", "h100_sxm"),
}

# Types whose kernels are built alike (operand widths, where the scales are applied), nearest first.
_ALIKE = {
    "bfloat16": ("float16",),
    "float16": ("bfloat16",),
    "half": ("bfloat16",),
    "fp8": ("fp8_block", "fp8_ootb"),
    "fp8_block": ("fp8",),
    "fp8_ootb": ("fp8",),
    "int8": ("fp8",),
    "sq": ("fp8",),
    "int8_wo": ("int4_wo", "bfloat16"),
    "int4_wo": ("w4a16_mxfp4", "bfloat16"),
    "w4a16_mxfp4": ("int4_wo", "bfloat16"),
    "w4afp8": ("w4a8_mxfp4_mxfp8", "fp8_block", "fp8"),
    "w4a8_mxfp4_mxfp8": ("w4afp8", "nvfp4", "fp8_block", "fp8"),
    "nvfp4": ("w4a8_mxfp4_mxfp8", "fp8_block", "fp8"),
}
# Without FP4 tensor cores the 4-bit types are weight-only: they compute in bfloat16.
_ALIKE_WITHOUT_FP4 = {"nvfp4": ("w4a16_mxfp4", "int4_wo", "bfloat16")}
# Without FP8 tensor cores (Ampere) the 8-bit types are weight-only too.
_WEIGHT_ONLY = ("bfloat16",)


@dataclass(frozen=True, slots=True)
class Source:
    """A table to try: where it was measured, under which framework and data type; ``own`` if nothing is borrowed."""

    accelerator: str
    framework: str
    dtype: str
    own: bool


def tables_of(accelerator: Accelerator) -> str | None:
    """Name of the accelerator whose tables serve ``accelerator``: its own, else the one it borrows from."""
    return accelerator.tables or accelerator.efficiency_from


def alike(accelerator: Accelerator, dtype: str) -> tuple[str, ...]:
    """Other data types whose kernels resemble those of ``dtype`` on ``accelerator``, nearest first."""
    peaks = accelerator.peak_flops
    if "fp4" not in peaks and dtype in _ALIKE_WITHOUT_FP4:
        return _ALIKE_WITHOUT_FP4[dtype]
    if "fp8" not in peaks and dtype in ("fp8", "fp8_block", "fp8_ootb", "w4afp8", "w4a8_mxfp4_mxfp8"):
        return _WEIGHT_ONLY
    return _ALIKE.get(dtype, ())


def sources(accelerator: Accelerator, framework: str, dtype: str) -> tuple[Source, ...]:
    """Tables to try in order.

    The data type decides the kernel more than the framework does, so on one accelerator: ``dtype`` under the
    framework itself, ``dtype`` under the others, then the types alike in the same way; then the next accelerator.
    """
    home = tables_of(accelerator)
    if home is None:
        return ()
    frameworks = (framework, *(other for other in FRAMEWORKS if other != framework))
    dtypes = (dtype, *alike(accelerator, dtype))
    order = []
    for place in (home, *_NEAREST.get(home, ())):
        for kind in dtypes:
            for frame in frameworks:
                own = place == accelerator.tables and kind == dtype and frame == framework
                order.append(Source(place, frame, kind, own))
    return tuple(order)


def rates_of(name: str, reference: Accelerator) -> Accelerator:
    """Catalogue rates of the accelerator ``name``; ``reference`` itself when that is the one."""
    if name in (reference.name, reference.tables):
        return reference
    return load_accelerator(name)


def provenance(own: bool, exact: npt.NDArray[np.bool_]) -> ProvenanceArray:
    """Per row: MEASURED at an exact point, INTERPOLATED elsewhere under the right key, otherwise BORROWED."""
    if not own:
        return np.full(exact.shape, Provenance.BORROWED, dtype=np.int8)
    return np.where(exact, Provenance.MEASURED, Provenance.INTERPOLATED).astype(np.int8)


def rescaled(
    measured: FloatArray, their_light: FloatArray, our_light: FloatArray, floor_s: float
) -> FloatArray:
    """Latency of a kernel elsewhere made ours: what exceeds the launch scales with the speed of light.

    ``floor_s`` is the fastest row of their table: launching costs the same whatever is computed.
    """
    floor = np.minimum(floor_s, measured)
    return floor + (measured - floor) * our_light / their_light


def measured_under(framework: str, operator: str, column: str, dtype: str) -> bool:
    """Whether somebody measured a kernel of ``framework`` for ``operator`` in ``dtype``, on whatever accelerator.

    ``column`` is the table's column of the type.
    """
    frames = (load_table(accelerator, framework, operator) for accelerator in _NEAREST)
    return any(frame is not None and bool((frame[column] == dtype).any()) for frame in frames)
