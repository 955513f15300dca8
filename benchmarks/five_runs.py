"""What five runs of one's own bring: the error of a group's other runs after `afd-dse calibrate` on five of them.

A group is one model on one accelerator under one framework. Five of its published runs are drawn at random, the shipped
calibration is fitted to them, and the TPOT of the others is predicted with it: as they were measured, and as a cluster
would measure them on which every layer takes some microseconds longer than the shipped calibration says.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from afd_dse.calibration.fit import STEP_TERMS, Terms, generation_of, solve, step_terms
from afd_dse.calibration.measured import completed, read_measured
from afd_dse.operators.latency import FloatArray
from afd_dse.spec.calibration import load_calibration

RUNS = Path(__file__).resolve().parents[1] / "tests" / "data" / "measured_runs.csv"
SMALLEST_GROUP, KNOWN, DRAWS = 12, 5, 6
HOLDS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
SLOWER_US = (0.0, 20.0)


def slower(terms: Terms, microseconds: float) -> Terms:
    """The same runs on a cluster whose layers take longer."""
    measured = terms.measured + terms.columns["layer_overhead_us"] * microseconds
    return Terms(measured, terms.offset, terms.columns, terms.borrowed_share)


def main() -> None:
    """Print the mean error before, and after with every strength at which the start may hold."""
    usable, terms = step_terms(completed(read_measured(RUNS)))
    calibration, names = load_calibration("default"), list(STEP_TERMS)
    spread: FloatArray = np.array([STEP_TERMS[name][1] for name in names])
    for microseconds in SLOWER_US:
        here, rng = slower(terms, microseconds), np.random.default_rng(0)
        found: list[dict[object, float]] = []
        for (_, accelerator, framework), group in usable.groupby(["model", "accelerator", "framework"]):
            if len(group) < SMALLEST_GROUP:
                continue
            start = calibration.overheads_of(str(framework), generation_of(str(accelerator)))
            prior: FloatArray = np.array([getattr(start, name) for name in names])
            for _ in range(DRAWS):
                known = group.index[rng.choice(len(group), KNOWN, replace=False)]
                others = group.index.difference(known)
                fits: dict[object, FloatArray] = {"before": prior}
                fits |= {hold: solve(usable, here, known, prior, spread, hold) for hold in HOLDS}
                found.append({name: _error(here, others, names, values) for name, values in fits.items()})
        print(f"layers {microseconds:g} us slower, {len(found)} draws; mean error of the others, per cent:")
        print(pd.DataFrame(found).mean().round(2).to_string(), end="\n\n")


def _error(terms: Terms, index: "pd.Index[int]", names: list[str], values: FloatArray) -> float:
    predicted = terms.predicted(index, dict(zip(names, map(float, values), strict=True)))
    return float(100.0 * (predicted / terms.measured[index] - 1.0).abs().mean())


if __name__ == "__main__":
    main()
