"""Validation against measured runs and calibration to them: what the commands call."""

from pathlib import Path
from typing import Any

import pandas as pd

from afd_dse.calibration import kv_capacity
from afd_dse.calibration.accuracy import compared, summary
from afd_dse.calibration.fit import fit_overheads, held_out
from afd_dse.calibration.intervals import fit_intervals
from afd_dse.calibration.measured import REASON, completed, read_measured
from afd_dse.errors import InputError, Problem
from afd_dse.spec.calibration import DEFAULT, Calibration, load_calibration

# Groups of model and accelerator from which a fit can leave one out and still say how it would do on an unknown one.
_ENOUGH_GROUPS = 8


def validate(path: Path, calibration: str = DEFAULT) -> tuple[dict[str, Any], pd.DataFrame]:
    """Measured against predicted, for the runs or the KV capacities in a CSV file.

    Returns the summary (per cent) and the table with a prediction for each row. Raises :class:`InputError` for a file
    that is not such a table.
    """
    frame = read_measured(path)
    if kv_capacity.MEASURED in frame.columns:
        table = kv_capacity.predict_kv_capacity(frame)
        return kv_capacity.kv_capacity_summary(table), table
    table = compared(completed(frame), load_calibration(calibration))
    return summary(table), table


def calibrate(path: Path, start: str | None = DEFAULT) -> tuple[Calibration, dict[str, Any]]:
    """Fit the overheads of engines to the runs in a CSV file.

    The fit shrinks to ``start``, so that five runs suffice; with None it starts from nothing. Intervals are those of
    ``start``, or of runs that the fit did not know where the file holds enough models and accelerators. Returns the
    calibration and the errors with it beside those with ``start``. Raises :class:`InputError` where no row is usable.
    """
    rows = completed(read_measured(path))
    base = None if start is None else load_calibration(start)
    before = compared(rows, base or load_calibration("none"))
    usable = before[REASON] == ""
    if not usable.any():
        reasons = "; ".join(before[REASON].unique()[:3])
        raise InputError(
            Problem(str(path), None, f"no row can be predicted ({reasons})", "mend the rows, or give others")
        )
    intervals = {} if base is None else dict(base.intervals)
    if base is None and len(rows[usable].groupby(["model", "accelerator"])) >= _ENOUGH_GROUPS:
        unknown = held_out(rows)
        intervals = fit_intervals(rows.loc[unknown.index], unknown)
    fitted = Calibration(
        source=f"{int(usable.sum())} runs of {path.name}" + (f", on top of: {base.source}" if base else ""),
        overheads=fit_overheads(rows[usable], base),
        intervals=intervals,
    )
    return fitted, {"before": summary(before), "after": summary(compared(rows, fitted))}
