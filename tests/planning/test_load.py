from pathlib import Path
from typing import Any

import numpy as np
import pytest

from afd_dse.errors import InputError
from afd_dse.planning.load import rate_over_time
from afd_dse.spec.demand import Horizon, Profile


def rates(hours: float = 48.0, period: float = 1.0, **profile: Any) -> np.ndarray:
    return rate_over_time(
        Profile.model_validate({"requests_per_s": 10.0} | profile), Horizon(hours=hours, period_hours=period)
    )


def test_a_constant_demand_is_constant() -> None:
    assert (rates() == 10.0).all()


def test_a_daily_profile_repeats_and_keeps_the_mean() -> None:
    daily = [1.0] * 12 + [3.0] * 12
    found = rates(daily=daily)
    assert found[:24].tolist() == found[24:].tolist() == [5.0] * 12 + [15.0] * 12
    # A period over both halves has the mean of both.
    assert rates(period=24.0, daily=daily).tolist() == pytest.approx([10.0, 10.0])


def test_days_of_the_week_and_growth_multiply() -> None:
    found = rates(hours=24.0 * 14, period=24.0, weekly=[1, 1, 1, 1, 1, 0, 0], growth_percent_per_day=1.0)
    assert found[:2].tolist() == pytest.approx([14.0, 14.0 * 1.01])
    assert found[5] == 0.0
    assert found[7] == pytest.approx(14.0 * 1.01**7)


def test_a_trace_is_counted_by_period_scaled_and_repeated(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    times = [*range(0, 3600, 4), *range(3600, 7201, 2)]
    path.write_text("timestamp_s,input_tokens,output_tokens\n" + "".join(f"{t},10,10\n" for t in times))
    found = rate_over_time(
        Profile.model_validate({"trace": str(path)}, context={"folder": tmp_path}),
        Horizon(hours=2.0, period_hours=1.0),
    )
    assert found.tolist() == pytest.approx([0.25, 0.5], rel=0.01)
    scaled = rates(hours=2.0, trace=str(path))
    assert scaled.mean() == pytest.approx(10.0)
    short = tmp_path / "short.csv"
    short.write_text("timestamp_s,input_tokens,output_tokens\n0,10,10\n5,10,10\n")
    with pytest.raises(InputError, match="less than half a period"):
        rates(hours=2.0, trace=str(short))
