"""What users would have seen: percentiles, goodput, throughput and utilisation of a finished simulation."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from afd_dse.cost.scenario import Slo
from afd_dse.operators.latency import FloatArray
from afd_dse.simulation.simulator import Simulator

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
# Of stationary arrivals the first and the last share is not judged: the system fills up, and runs empty.
WARM_UP, COOL_DOWN = 0.2, 0.1
# A limit counts as kept up to this share above it. Layouts are searched up to the very limit, and a percentile of some
# thousand requests is known to about this much.
TOLERANCE = 0.03


@dataclass(frozen=True, slots=True)
class Outcome:
    """Judged requests, seconds [n] each: NaN in ``tpot_s`` for answers of one token.

    ``window_s`` is the time over which ``requests_per_s`` and ``tokens_per_s`` were counted.
    """

    ttft_s: FloatArray
    tpot_s: FloatArray
    latency_s: FloatArray
    wait_s: FloatArray
    requests_per_s: float
    tokens_per_s: float
    window_s: float


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of the SLO against the simulation: ``statistic`` says what of the requests is judged."""

    name: str
    statistic: str
    limit_s: float
    simulated_s: float

    @property
    def met(self) -> bool:
        """Whether the limit is kept, up to :data:`TOLERANCE`."""
        return self.simulated_s <= self.limit_s * (1.0 + TOLERANCE)


def outcome_of(simulator: Simulator) -> Outcome:
    """Times of the judged requests of a finished simulation."""
    book = simulator.book
    arrival, first = np.array(book.arrival_s), np.array(book.first_s)
    finish, start = np.array(book.finish_s), np.array(book.start_s)
    outputs = np.array(book.output_tokens, dtype=np.float64)
    rows = judged(simulator)
    ended = np.isfinite(finish)
    if simulator.requests.steady and rows.any():
        begin, end = arrival[rows].min(), arrival[rows].max()
    else:
        begin = arrival[ended].min() if ended.any() else 0.0
        end = finish[ended].max() if ended.any() else 0.0
    counted = ended & (finish > begin) & (finish <= end)
    window = max(float(end - begin), 1e-12)
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = (finish - first)[rows] / (outputs[rows] - 1.0)
    return Outcome(
        ttft_s=(first - arrival)[rows],
        tpot_s=np.where(outputs[rows] > 1.0, tpot, np.nan),
        latency_s=(finish - arrival)[rows],
        wait_s=(start - arrival)[rows],
        requests_per_s=float(counted.sum()) / window,
        tokens_per_s=float(outputs[counted].sum()) / window,
        window_s=window,
    )


def judged(simulator: Simulator) -> npt.NDArray[np.bool_]:
    """Which requests count [n]: all that ended, without start and end of stationary arrivals."""
    count = len(simulator.book.arrival_s)
    rows = np.isfinite(np.array(simulator.book.finish_s))
    if simulator.requests.steady:
        place = np.arange(count)
        rows = rows & (place >= WARM_UP * count) & (place < (1.0 - COOL_DOWN) * count)
    return np.asarray(rows)


def limits_of(slo: Slo, outcome: Outcome) -> list[Limit]:
    """The limits that are set: TTFT at the SLO's percentile, the others at the mean, as in the cost model."""
    if not len(outcome.ttft_s):
        return []
    found = []
    if np.isfinite(slo.ttft_s):
        value = float(np.percentile(outcome.ttft_s, slo.percentile))
        found.append(Limit("TTFT", f"percentile {slo.percentile:g}", slo.ttft_s, value))
    if np.isfinite(slo.tpot_s):
        found.append(Limit("TPOT", "mean", slo.tpot_s, _mean(outcome.tpot_s)))
    if np.isfinite(slo.latency_s):
        found.append(Limit("request latency", "mean", slo.latency_s, _mean(outcome.latency_s)))
    return found


def goodput(slo: Slo, outcome: Outcome) -> float:
    """Share of the judged requests that kept every limit; NaN when none was judged."""
    if not len(outcome.ttft_s):
        return float("nan")
    tpot = np.nan_to_num(outcome.tpot_s, nan=0.0)
    good = (outcome.ttft_s <= slo.ttft_s) & (tpot <= slo.tpot_s) & (outcome.latency_s <= slo.latency_s)
    return float(good.mean())


def statistics(seconds: FloatArray) -> dict[str, float | None]:
    """Mean and :data:`PERCENTILES` in ms; None where there is nothing."""
    known = seconds[np.isfinite(seconds)]
    names = ("mean", *(f"p{percentile:g}" for percentile in PERCENTILES))
    if not len(known):
        return dict.fromkeys(names)
    values = (float(known.mean()), *np.percentile(known, PERCENTILES).tolist())
    return {name: 1e3 * value for name, value in zip(names, values, strict=True)}


def _mean(seconds: FloatArray) -> float:
    known = seconds[np.isfinite(seconds)]
    return float(known.mean()) if len(known) else 0.0
