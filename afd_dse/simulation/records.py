"""What a simulation notes while it runs: token intervals, queue lengths over time, work done."""

import math
from typing import Any

import numpy as np

from afd_dse.operators.latency import FloatArray

# Intervals are counted in bins 1 % wide.
_BINS_PER_E = 1.0 / math.log(1.01)
_MOST_SAMPLES = 1024
TIMELINE = ("time_s", "waiting", "prefilling", "moving", "decoding", "kv_used", "prefill_busy", "decode_busy")


class Records:
    """Counts and samples; ``interval_counts`` maps a bin of log(seconds) to tokens."""

    __slots__ = (
        "decode_tokens",
        "interval_counts",
        "next_sample_s",
        "prefill_tokens",
        "samples",
        "spacing_s",
    )

    def __init__(self) -> None:
        self.interval_counts: dict[int, float] = {}
        self.samples: list[tuple[float, ...]] = []
        self.spacing_s = 0.0
        self.next_sample_s = 0.0
        self.decode_tokens = 0.0
        self.prefill_tokens = 0.0

    def interval(self, seconds: float, tokens: float) -> None:
        """``tokens`` came ``seconds`` after the ones before them."""
        place = round(math.log(seconds) * _BINS_PER_E) if seconds > 0.0 else -10_000
        self.interval_counts[place] = self.interval_counts.get(place, 0.0) + tokens

    def interval_percentiles(self, percentiles: tuple[float, ...]) -> list[float]:
        """Seconds between tokens at percentiles, right to half a per cent; NaN when there are none."""
        if not self.interval_counts:
            return [math.nan] * len(percentiles)
        places = sorted(self.interval_counts)
        shares = np.cumsum([self.interval_counts[place] for place in places])
        rows = np.searchsorted(shares, np.array(percentiles) / 100.0 * shares[-1])
        return [math.exp(places[min(int(row), len(places) - 1)] / _BINS_PER_E) for row in rows]

    def sample(self, values: tuple[float, ...]) -> None:
        """Note one row of the timeline. When there are too many, every second one goes and the spacing doubles."""
        self.samples.append(values)
        if len(self.samples) >= _MOST_SAMPLES:
            self.samples = self.samples[::2]
            self.spacing_s = 2.0 * (self.samples[-1][0] - self.samples[0][0]) / _MOST_SAMPLES
        self.next_sample_s = values[0] + self.spacing_s

    @property
    def timeline(self) -> dict[str, FloatArray]:
        """The samples as columns."""
        rows = np.array(self.samples).reshape(-1, len(TIMELINE))
        return {name: rows[:, number] for number, name in enumerate(TIMELINE)}

    def state(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "intervals": [[place, tokens] for place, tokens in self.interval_counts.items()],
            "samples": [list(row) for row in self.samples],
            "spacing_s": self.spacing_s,
            "next_sample_s": self.next_sample_s,
            "decode_tokens": self.decode_tokens,
            "prefill_tokens": self.prefill_tokens,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state` gave."""
        self.interval_counts = {int(place): tokens for place, tokens in state["intervals"]}
        self.samples = [tuple(row) for row in state["samples"]]
        for name in ("spacing_s", "next_sample_s", "decode_tokens", "prefill_tokens"):
            setattr(self, name, state[name])
