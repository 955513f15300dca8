"""How far predictions lie from measured runs: errors, bias, order within a question, and regret of the choice."""

from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd

from afd_dse.calibration.intervals import METRICS, interval
from afd_dse.calibration.measured import REASON
from afd_dse.calibration.runs import predict
from afd_dse.spec.calibration import Calibration

# One question: runs among which a user would choose.
QUESTION = ["model", "accelerator", "isl", "osl"]
PARTITIONS = ("framework", "accelerator", "model", "mode", "precision", "concurrency_class")
_CLASSES = [0.0, 8.0, 32.0, 128.0, np.inf]
_CLASS_NAMES = ["up to 8", "9 to 32", "33 to 128", "over 128"]
_PER_CENT = 100.0


def compared(rows: pd.DataFrame, calibration: Calibration) -> pd.DataFrame:
    """Measured rows beside what is predicted for them.

    ``rows`` as :func:`afd_dse.calibration.measured.completed` gives them. Added are ``predicted_*``, ``low_*`` and
    ``high_*`` (90 % interval) for the three metrics, ``batch``, ``borrowed_share`` and ``reason``.
    """
    found = predict(rows, calibration)
    table = rows.drop(columns=REASON)
    for metric, name in METRICS.items():
        table[f"predicted_{name}"] = found[name]
        table[f"low_{name}"], table[f"high_{name}"] = np.nan, np.nan
        for framework, part in found.groupby(rows["framework"]):
            low, high = interval(calibration, str(framework), metric, part[name], part["borrowed_share"])
            table.loc[part.index, f"low_{name}"] = low
            table.loc[part.index, f"high_{name}"] = high
    table["batch"], table["borrowed_share"] = found["batch"], found["borrowed_share"]
    table[REASON] = found[REASON]
    return table


def summary(table: pd.DataFrame) -> dict[str, Any]:
    """Errors of a table of :func:`compared` in per cent, overall and by partition, with regret and rank correlation."""
    answered = table[table[REASON] == ""]
    unsupported = table.loc[table[REASON] != "", REASON].value_counts()
    classes = pd.cut(answered["concurrency"], _CLASSES, labels=_CLASS_NAMES).astype(str)
    answered = answered.assign(concurrency_class=classes)
    return {
        "rows": len(table),
        "predicted": len(answered),
        "unsupported": {str(reason): int(count) for reason, count in unsupported.items()},
        **errors(answered),
        **_choice(answered),
        "by": {
            name: {
                _named(value): {"rows": len(part), **errors(part)}
                for value, part in answered.groupby(name, sort=True)
            }
            for name in PARTITIONS
        },
    }


def _named(value: Hashable) -> str:
    return str(value) or "unstated"


def errors(table: pd.DataFrame) -> dict[str, float | None]:
    """Mean and median absolute error, median signed error and coverage of the intervals, per cent; None: no run."""
    found: dict[str, float | None] = {}
    inside: list[pd.Series] = []
    for metric, name in METRICS.items():
        here = table[table[name] > 0.0]
        error = _PER_CENT * (here[f"predicted_{name}"] / here[name] - 1.0)
        found[f"{metric}_mape"] = _number(error.abs().mean())
        found[f"{metric}_median_ape"] = _number(error.abs().median())
        found[f"{metric}_bias"] = _number(error.median())
        known = here[here[f"low_{name}"].notna()]
        covered = (known[f"low_{name}"] <= known[name]) & (known[name] <= known[f"high_{name}"])
        found[f"{metric}_coverage90"] = _number(_PER_CENT * covered.mean()) if len(known) else None
        inside.append(covered)
    every = pd.concat(inside)
    found["coverage90"] = _number(_PER_CENT * every.mean()) if len(every) else None
    return found


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _choice(table: pd.DataFrame) -> dict[str, float | int | None]:
    """Order and choice among the configurations measured for one question.

    Regret is what the chosen configuration's measured throughput per GPU lacks to the best one's, per cent. With a
    limit, the median of the question's measured TPOT, only configurations predicted to keep it are chosen from, and
    only those that kept it can be best; a choice that broke the limit by more than the noise of runs, 5 %, is counted
    apart.
    """
    name = METRICS["throughput"]
    regrets, limited, ranks, broken = [], [], [], 0
    for _, runs in table[table[name] > 0.0].groupby(QUESTION):
        if len(runs) < 2:
            continue
        columns = (name, f"predicted_{name}", "tpot_ms", "predicted_tpot_ms")
        got, expected, tpot, expected_tpot = (runs[column].to_numpy(np.float64) for column in columns)
        regrets.append(1.0 - got[expected.argmax()] / got.max())
        if len(runs) >= 3:
            ranks.append(float(runs[name].corr(runs[f"predicted_{name}"], method="spearman")))
        limit = float(np.median(tpot))
        best = got[tpot <= limit].max()
        offered = expected_tpot <= limit
        pick = int(np.where(offered, expected, -np.inf).argmax() if offered.any() else expected_tpot.argmin())
        late = tpot[pick] > 1.05 * limit
        broken += int(late)
        if not late:
            limited.append(1.0 - min(got[pick], best) / best)
    return {
        "questions": len(regrets),
        "regret": _number(_PER_CENT * float(np.mean(regrets))) if regrets else None,
        "regret_under_tpot_limit": _number(_PER_CENT * float(np.mean(limited))) if limited else None,
        "limits_broken": broken,
        "rank_correlation": _number(float(np.nanmean(ranks))) if ranks else None,
    }
