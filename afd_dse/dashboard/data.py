"""Results as columns that a slider can filter: which candidates meet which limits, at which prices and power."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.report.figures.theme import mode_styles
from afd_dse.report.metrics import points_of
from afd_dse.results.asked import pools_text
from afd_dse.results.result import Result
from afd_dse.results.table import GPUS_OF
from afd_dse.spec.job import Job
from afd_dse.spec.load import load_job

Mask = npt.NDArray[np.bool_]

LIMITS = {"ttft_ms": "ttft_percentile_ms", "tpot_ms": "tpot_ms", "request_latency_ms": "request_latency_ms"}
"""Limits of an SLO that can be moved, and the column that each one bounds."""
LIMIT_NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "request_latency_ms": "request latency"}
# Slacks of what no SLO can change: what does not fit the GPUs does not fit at any speed.
_HARD = ("memory", "gpus", "prefill_capacity", "shared_capacity", "KV_transfer", "demand")


@dataclass(frozen=True)
class Dataset:
    """One result: its document and its candidates with all metrics. ``key`` names it in links."""

    key: str
    name: str
    document: Mapping[str, Any]
    points: pd.DataFrame
    folder: Path | None = None

    @cached_property
    def job(self) -> Job:
        """The job that was searched."""
        return load_job(self.document["job"])

    @cached_property
    def sound(self) -> Mask:
        """Candidates that meet everything but the SLO [n]."""
        found = np.ones(len(self.points), dtype=bool)
        for name in _HARD:
            if f"slack_{name}" in self.points:
                found &= self.points[f"slack_{name}"].to_numpy() >= 0.0
        return found

    @cached_property
    def modes(self) -> list[str]:
        """All modes of the result in its order."""
        return [entry["name"] for entry in self.document["modes"]]

    @cached_property
    def styles(self) -> dict[str, tuple[str, str]]:
        """Colour and symbol of every mode."""
        return mode_styles(self.modes)

    @cached_property
    def mode_codes(self) -> IntArray:
        """Number of each candidate's mode [n]."""
        return pd.Categorical(self.points["mode"], categories=self.modes).codes.astype(np.int64)

    @cached_property
    def pools(self) -> dict[str, tuple[str, float, float]]:
        """By pool its accelerator, its price in USD per GPU hour and its power in watts, as searched."""
        return {
            pool.name: (pool.resolved.name, pool.resolved.usd_per_gpu_hour, pool.resolved.power_w)
            for pool in self.job.cluster.pools
        }

    @cached_property
    def gpus_by_pool(self) -> FloatArray | None:
        """GPUs of every candidate by pool [n, pools]; None where the table does not tell them apart."""
        names = [f"{GPUS_OF}{pool}" for pool in self.pools]
        if all(name in self.points for name in names):
            return self.points[names].to_numpy(dtype=np.float64)
        return self.points[["gpus"]].to_numpy(dtype=np.float64) if len(names) == 1 else None

    @property
    def slo(self) -> Mapping[str, float | None]:
        """The limits that were searched under."""
        slo: Mapping[str, float | None] = self.document["job"]["slo"]
        return slo

    def column(self, name: str) -> FloatArray:
        """A metric of all candidates [n]."""
        return self.points[name].to_numpy(dtype=np.float64)

    def repriced(self, prices: Mapping[str, float], powers: Mapping[str, float]) -> "Dataset":
        """The same candidates at other prices (USD per GPU hour) and powers (W) by accelerator.

        What is absent stays as searched; the dataset itself is returned where nothing changes.
        """
        changed = any(
            prices.get(name, usd) != usd or powers.get(name, watts) != watts
            for name, usd, watts in self.pools.values()
        )
        gpus = self.gpus_by_pool
        if not changed or gpus is None:
            return self
        usd = np.array([prices.get(name, usd) for name, usd, _ in self.pools.values()])
        watts = np.array([powers.get(name, watts) for name, _, watts in self.pools.values()])
        rate = self.column("tokens_per_s")
        joules = gpus @ watts / rate
        points = self.points.assign(
            usd_per_mtok=gpus @ usd / 3600.0 / rate * 1e6,
            joules_per_token=joules,
            tokens_per_s_per_mw=1e6 / joules,
        )
        return Dataset(self.key, self.name, self.document, points, self.folder)

    def within(self, limits: Mapping[str, float | None]) -> Mask:
        """Candidates that are sound and meet ``limits`` (by the names of an SLO, ms; None: no limit) [n]."""
        found = self.sound.copy()
        for name, limit in limits.items():
            if limit is not None:
                found &= self.column(LIMITS[name]) <= limit
        return found

    def closest(self, limits: Mapping[str, float | None]) -> tuple[int, str, float] | None:
        """The sound candidate whose worst limit is exceeded by the least: row, that limit, excess as a share of it.

        None where no candidate is sound or no limit is set.
        """
        bounded = [(name, limit) for name, limit in limits.items() if limit is not None]
        rows = np.flatnonzero(self.sound)
        if not len(rows) or not bounded:
            return None
        excess = np.stack([self.column(LIMITS[name])[rows] / limit - 1.0 for name, limit in bounded])
        worst = excess.max(axis=0)
        place = int(worst.argmin())
        binding = bounded[int(excess[:, place].argmax())][0]
        return int(rows[place]), binding, float(worst[place])


@dataclass
class Library:
    """The results that a page shows, in the order in which they came; safe to use from several threads."""

    datasets: dict[str, Dataset] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add(self, result: Result, folder: Path | None = None) -> Dataset:
        """Take a result in and return it as a dataset with a name of its own."""
        document = result.document
        model = str(document["model"]["name"]).rsplit("/", 1)[-1]
        with self._lock:
            key = f"r{len(self.datasets) + 1}"
            name = _distinct(
                f"{model}, {pools_text(document['job'])}, {document['job']['framework']}",
                [known.name for known in self.datasets.values()],
            )
            found = Dataset(key, name, document, points_of(document, result.candidates), folder)
            self.datasets[key] = found
        return found

    def chosen(self, keys: Sequence[str]) -> list[Dataset]:
        """The datasets of ``keys``; unknown ones are left out."""
        return [self.datasets[key] for key in keys if key in self.datasets]

    def __iter__(self) -> Iterator[Dataset]:
        return iter(list(self.datasets.values()))

    def accelerators(self) -> dict[str, tuple[float, float]]:
        """Price (USD per GPU hour) and power (W) of every accelerator of any result, as first seen."""
        found: dict[str, tuple[float, float]] = {}
        for dataset in self:
            for name, usd, watts in dataset.pools.values():
                found.setdefault(name, (usd, watts))
        return found

    def span(self, limit: str) -> tuple[float, float]:
        """Least and greatest value, ms, of the candidates of all results, the searched limits included."""
        values = [
            column[np.isfinite(column) & (column > 0.0)]
            for dataset in self
            if len(dataset.points)
            for column in (dataset.column(LIMITS[limit]),)
        ]
        searched = [float(value) for dataset in self if (value := dataset.slo[limit]) is not None]
        every = np.concatenate([*values, searched, [] if any(map(len, values)) else [1.0, 1000.0]])
        return float(every.min()), float(every.max())


def _distinct(name: str, known: Sequence[str]) -> str:
    if name not in known:
        return name
    return next(f"{name} ({n})" for n in range(2, len(known) + 3) if f"{name} ({n})" not in known)
