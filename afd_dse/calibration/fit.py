"""Fits the overheads of engines to measured runs: few parameters, each shrunk to a broader fit of its own kind."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import lsq_linear

from afd_dse.calibration.measured import AGGREGATED, REASON
from afd_dse.calibration.runs import METRICS, predict
from afd_dse.operators.latency import FloatArray
from afd_dse.spec.calibration import Calibration, Overheads
from afd_dse.spec.catalogue import load_accelerator

GROUP = ["model", "accelerator"]
HOPPER, BLACKWELL = "hopper", "blackwell"
# What TPOT is linear in, given the batch: name, first guess and how far it may plausibly lie from it.
_STEP_TERMS = {
    "layer_overhead_us": (5.0, 10.0),
    "dense_layer_overhead_us": (5.0, 10.0),
    "linear_layer_overhead_us": (5.0, 30.0),
    "step_overhead_ms": (0.1, 0.5),
    "sequence_overhead_us": (3.0, 5.0),
}
_FIRST_TOKEN_TERMS = {
    "request_overhead_ms": (20.0, 30.0),
    "admission_steps": (3.0, 5.0),
    "prompts_ahead": (1.0, 2.0),
}
# How strongly the broader fit holds: the first guess all runs, all runs a framework, a framework its generations.
SHRINKAGE = (1.0, 3.0, 3.0)
# Relative errors below this count as noise of the runs: run-to-run noise is 2 to 6 %.
_NOISE = 0.03
# Relative error at which the first guess's spread counts as much as one run.
_PRIOR_ERROR = 0.1
_SWEEPS = 30


def generation_of(accelerator: str) -> str:
    """The generation whose overheads an accelerator has, as in :meth:`Calibration.overheads_of`."""
    return BLACKWELL if load_accelerator(accelerator).generation.startswith(BLACKWELL) else HOPPER


@dataclass(frozen=True, slots=True)
class Terms:
    """A linear model of a latency: measured [n], its offset [n], and the columns [n, k] that parameters multiply."""

    measured: pd.Series
    offset: pd.Series
    columns: pd.DataFrame
    borrowed_share: pd.Series

    def predicted(self, index: pd.Index, parameters: Mapping[str, float]) -> pd.Series:
        """Latencies at ``index`` with ``parameters``."""
        weights = pd.Series(dict(parameters), dtype=np.float64)
        return self.offset[index] + self.columns.loc[index, weights.index] @ weights


Fitted = dict[tuple[str, str], dict[str, float]]


def fit_overheads(rows: pd.DataFrame, start: Calibration | None = None) -> dict[str, dict[str, Overheads]]:
    """Overheads by framework and generation, fitted to ``rows`` (completed measured runs).

    With ``start`` the fit of every framework on every generation shrinks to what stands there, so that five runs
    suffice; without, to the fit of the framework, and that to the fit of all runs.
    """
    known = {} if start is None else start.overheads
    usable, steps = step_terms(rows)
    fitted = hierarchy(usable, steps, _STEP_TERMS, known)
    heard, first = first_token_terms(usable, _as_overheads(fitted, {}))
    heard_fit = hierarchy(heard, first, _FIRST_TOKEN_TERMS, known)
    return _as_overheads({key: {**value, **heard_fit.get(key, {})} for key, value in fitted.items()}, known)


def held_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Every usable run as fits predict it that know no run of its model on its accelerator.

    Columns ``tpot_ms``, ``ttft_ms``, ``output_tokens_per_s_per_gpu``, ``borrowed_share``. The fits are linear around
    kernels alone (TPOT) and the first guess (TTFT); throughput follows by Little's law.
    """
    usable, steps = step_terms(rows)
    guess = {name: prior for name, (prior, _) in _STEP_TERMS.items()}
    keys = [(name, g) for name in usable["framework"].unique() for g in (HOPPER, BLACKWELL)]
    heard, first = first_token_terms(usable, _as_overheads(dict.fromkeys(keys, guess), {}))
    found = pd.DataFrame(np.nan, index=usable.index, columns=list(METRICS))
    for _, fold in usable.groupby(GROUP, sort=False):
        for name, part, terms, priors in (
            ("tpot_ms", usable, steps, _STEP_TERMS),
            ("ttft_ms", heard, first, _FIRST_TOKEN_TERMS),
        ):
            fitted = hierarchy(part.drop(fold.index, errors="ignore"), terms, priors, {})
            inside = part.loc[part.index.intersection(fold.index)]
            for key, here in inside.groupby(["framework", "generation"]):
                parameters = fitted.get((str(key[0]), str(key[1])))
                if parameters is not None:
                    found.loc[here.index, name] = terms.predicted(here.index, parameters)
    seconds = (found["ttft_ms"] + (usable["osl"] - 1.0) * found["tpot_ms"]) / 1e3
    found["output_tokens_per_s_per_gpu"] = usable["concurrency"] * usable["osl"] / seconds / usable["gpus"]
    return found.assign(borrowed_share=steps.borrowed_share)


def step_terms(rows: pd.DataFrame) -> tuple[pd.DataFrame, Terms]:
    """The usable rows, labelled with their generation, and what their TPOT is made of."""
    bare = predict(rows, Calibration(source="kernels alone", overheads={}))
    names = {name: generation_of(name) for name in rows.loc[rows[REASON] == "", "accelerator"].unique()}
    usable = rows.assign(generation=rows["accelerator"].map(names))[(bare[REASON] == "")]
    found = bare.loc[usable.index]
    columns = {
        "layer_overhead_us": found["layers"] * 1e-3,
        "dense_layer_overhead_us": found["dense_layers"] * 1e-3,
        "linear_layer_overhead_us": found["linear_layers"] * 1e-3,
        "step_overhead_ms": pd.Series(1.0, index=usable.index),
        "sequence_overhead_us": found["batch"] * 1e-3,
    }
    return usable, Terms(usable["tpot_ms"], found["tpot_ms"], pd.DataFrame(columns), found["borrowed_share"])


def first_token_terms(
    rows: pd.DataFrame, overheads: Mapping[str, Mapping[str, Overheads]]
) -> tuple[pd.DataFrame, Terms]:
    """The rows whose TTFT was measured, and what it is made of where steps take ``overheads``."""
    heard = rows[rows["ttft_ms"] > 0.0]
    found = predict(heard, Calibration(source="steps", overheads=overheads))
    shared = (heard["mode"] == AGGREGATED).astype(float) * (1.0 - found["joint_share"])
    columns = {
        "request_overhead_ms": pd.Series(1.0, index=heard.index),
        "admission_steps": shared * found["tpot_ms"],
        "prompts_ahead": shared * found["prefill_ms"] * found["equal_lengths"],
    }
    return heard, Terms(heard["ttft_ms"], found["ttft_ms"], pd.DataFrame(columns), found["borrowed_share"])


def hierarchy(
    rows: pd.DataFrame,
    terms: Terms,
    priors: Mapping[str, tuple[float, float]],
    known: Mapping[str, Mapping[str, Overheads]],
) -> Fitted:
    """Parameters by framework and generation; where ``known`` states some, the fit shrinks to those."""
    names = list(priors)
    spread = np.array([priors[name][1] for name in names])
    guess = np.array([priors[name][0] for name in names])
    everything = _solve(rows, terms, rows.index, guess, spread, SHRINKAGE[0])
    found: Fitted = {}
    for framework, part in rows.groupby("framework"):
        whole = _solve(rows, terms, part.index, everything, spread, SHRINKAGE[1])
        for generation in (HOPPER, BLACKWELL):
            here = part.index[part["generation"] == generation]
            stated = known.get(str(framework), {}).get(generation)
            prior = whole if stated is None else np.array([getattr(stated, name) for name in names])
            best = _solve(rows, terms, here, prior, spread, SHRINKAGE[2]) if len(here) else prior
            found[(str(framework), generation)] = dict(zip(names, map(float, best), strict=True))
    return found


def _solve(
    rows: pd.DataFrame,
    terms: Terms,
    index: pd.Index,
    prior: FloatArray,
    spread: FloatArray,
    shrinkage: float,
) -> FloatArray:
    """Least absolute relative errors by reweighted least squares, parameters not negative, drawn to ``prior``.

    Many runs of one model on one accelerator say little more than a few: a run counts 1/sqrt(runs of its group).
    """
    measured = terms.measured[index].to_numpy(np.float64)
    design = terms.columns.loc[index].to_numpy(np.float64) / measured[:, None]
    target = 1.0 - terms.offset[index].to_numpy(np.float64) / measured
    group = rows.loc[index].groupby([*GROUP, "framework"])["isl"].transform("size").to_numpy(np.float64)
    ridge = np.sqrt(shrinkage) * _PRIOR_ERROR / spread
    best = prior
    for _ in range(_SWEEPS):
        residual = np.abs(design @ best - target)
        weight = np.sqrt(group**-0.5 * _NOISE / np.maximum(residual, _NOISE))
        matrix = np.vstack([design * weight[:, None], np.diag(ridge)])
        sides = np.concatenate([target * weight, ridge * prior])
        found: FloatArray = lsq_linear(matrix, sides, bounds=(0.0, np.inf)).x
        moved = float(np.abs(found - best).max())
        best = found
        if moved < 1e-6:
            break
    return best


def _as_overheads(
    fitted: Mapping[tuple[str, str], Mapping[str, float]], known: Mapping[str, Mapping[str, Overheads]]
) -> dict[str, dict[str, Overheads]]:
    found = {framework: dict(by_generation) for framework, by_generation in known.items()}
    for (framework, generation), values in fitted.items():
        rounded = {name: round(value, 3) for name, value in values.items()}
        found.setdefault(framework, {})[generation] = Overheads(**rounded)
    return found
