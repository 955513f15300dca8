"""What engines take beyond their kernels: parameters fitted to measured runs, and how far predictions scatter."""

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo

from afd_dse.errors import DatabaseError, InputError, Problem
from afd_dse.resources import operator_db_root
from afd_dse.spec.base import Spec, absolute, complain_about
from afd_dse.spec.document import read_document
from afd_dse.spec.problems import as_input_error

DEFAULT, NONE = "default", "none"
COVERAGE = 0.90
# An estimate rests on borrowed kernels when they, or the bare speed of light, give more than this share of its time.
BORROWED_FROM = 0.30
Metric = Literal["tpot", "ttft", "throughput"]


class Overheads(Spec):
    """One framework on one generation of accelerators. All zero: nothing but the measured kernels."""

    layer_overhead_us: float = Field(0.0, ge=0)
    """Of every layer in every step: gaps between the kernels of attention, and small ones that no table holds."""
    dense_layer_overhead_us: float = Field(0.0, ge=0)
    """The same of a dense FFN. Tables of experts time the whole block, its gaps included."""
    linear_layer_overhead_us: float = Field(0.0, ge=0)
    """The same, in addition, of a layer of linear attention: convolution, gates and norms around the scan."""
    step_overhead_ms: float = Field(0.0, ge=0)
    """Of every step: scheduling and sampling on the host that no kernel hides."""
    sequence_overhead_us: float = Field(0.0, ge=0)
    """Of every step and sequence of a rank: sampling, detokenisation and streaming on the host."""
    request_overhead_ms: float = Field(0.0, ge=0)
    """Of every request before its first token: tokenisation, HTTP, admission."""
    admission_steps: float = Field(0.0, ge=0)
    """Steps that run before a request which has arrived takes part in one."""
    prompts_ahead: float = Field(0.0, ge=0)
    """Prompts that an arrival finds ahead of it where requests of equal length arrive in the bunches they left in."""


class Scatter(Spec):
    """Ratios measured / predicted below which 5 % and above which 5 % of measured runs lay."""

    low: float = Field(gt=0)
    high: float = Field(gt=0)

    @property
    def _log(self) -> NormalDist:
        """The logarithm of the ratio, as a normal distribution through both ends."""
        ends = math.log(self.low), math.log(self.high)
        width = NormalDist().inv_cdf((1.0 + COVERAGE) / 2.0)
        return NormalDist(sum(ends) / 2.0, max((ends[1] - ends[0]) / 2.0 / width, 1e-9))

    def ratio(self, confidence: float) -> float:
        """The ratio that measured / predicted stays below with probability ``confidence``."""
        return math.exp(self._log.inv_cdf(confidence))

    def probability_below(self, ratio: float) -> float:
        """Probability that measured / predicted stays below ``ratio``."""
        return self._log.cdf(math.log(ratio)) if ratio > 0.0 else 0.0


class Intervals(Spec):
    """Scatter of every metric: of estimates that rest on measured kernels, and of those that mostly borrow."""

    measured: Mapping[Metric, Scatter] = Field(strict=False)
    borrowed: Mapping[Metric, Scatter] = Field(strict=False)

    def of(self, metric: Metric, borrowed: bool) -> Scatter:
        """Scatter of ``metric``, of estimates that rest on ``borrowed`` kernels or on measured ones."""
        return (self.borrowed if borrowed else self.measured)[metric]


class Calibration(Spec):
    """A calibration file; `afd-dse calibrate` writes one."""

    source: str = Field(min_length=1)
    """What it was fitted to."""
    overheads: Mapping[str, Mapping[str, Overheads]] = Field(strict=False)
    """By framework, then by generation of accelerators (`hopper`, `blackwell`)."""
    intervals: Mapping[str, Intervals] = Field({}, strict=False)
    """By framework; a framework that is absent gets no interval."""

    def overheads_of(self, framework: str, generation: str) -> Overheads:
        """Overheads of ``framework`` on an accelerator of ``generation``.

        Host and launch overheads depend on the age of the stack: what is not Blackwell counts as Hopper.
        """
        known = self.overheads.get(framework, {})
        return known.get("blackwell" if generation.startswith("blackwell") else "hopper", Overheads())


UNCALIBRATED = Calibration(source="nothing: kernels alone", overheads={})


def load_calibration(name: str) -> Calibration:
    """The calibration ``name``: `default` (ships with the package), `none`, or the path of a file.

    Raises :class:`InputError` for an unreadable or invalid file, :class:`DatabaseError` where the shipped one is.
    """
    if name == NONE:
        return UNCALIBRATED
    if name == DEFAULT:
        return _shipped()
    return _read(Path(name))


@lru_cache(maxsize=1)
def _shipped() -> Calibration:
    path = operator_db_root() / "catalogue" / "calibration.yaml"
    try:
        return _read(path)
    except InputError as error:
        raise DatabaseError(f"{path}: unusable calibration ({error})") from error


def _read(path: Path) -> Calibration:
    try:
        return Calibration.model_validate(read_document(path))
    except ValidationError as error:
        raise as_input_error(error, Calibration) from None


def _existing(text: str, info: ValidationInfo) -> str:
    if text in (DEFAULT, NONE):
        return text
    path = absolute(text, info)
    if not path.is_file():
        problem = Problem(
            "calibration",
            text,
            "no such calibration",
            "write default, none, or the path of a file of afd-dse calibrate",
        )
        raise complain_about(InputError(problem))
    try:
        _read(path)
    except InputError as error:
        raise complain_about(error) from None
    return str(path)


CalibrationName = Annotated[str, Field(min_length=1, examples=[DEFAULT]), AfterValidator(_existing)]
