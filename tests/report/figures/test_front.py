import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.report.cards import axis_pairs
from afd_dse.report.figures import NothingToShowError, front_figure, front_info
from afd_dse.report.figures.front import CLOUD, limit_on, marked, thinned
from afd_dse.report.metrics import METRICS, points_of
from tests.results.examples import answer


def points() -> pd.DataFrame:
    return points_of(answer().document, answer().candidates)


@pytest.mark.parametrize(("x", "y"), axis_pairs())
def test_the_front_of_a_mode_is_what_no_candidate_of_it_beats_on_these_axes(x: str, y: str) -> None:
    table = points()
    info = front_info(answer().document, table, x, y)
    signs = METRICS[x].better, METRICS[y].better
    for series in info.fronts:
        mine = table[(table["mode"] == series.mode) & table["feasible"]]
        xs, ys = signs[0] * mine[x].to_numpy(), signs[1] * mine[y].to_numpy()
        for px, py in zip(signs[0] * series.x, signs[1] * series.y, strict=True):
            assert not ((xs >= px) & (ys >= py) & ((xs > px) | (ys > py))).any()
        assert list(series.x) == sorted(series.x)
        assert list(table[y].to_numpy()[series.rows]) == list(series.y)


def test_the_fronts_on_the_usual_axes_are_those_of_the_document() -> None:
    document = answer().document
    info = front_info(document, points())
    expected = {entry["name"]: entry["front"] for entry in document["modes"] if entry["front"]}
    assert {series.mode for series in info.fronts} == set(expected)
    for series in info.fronts:
        speeds = sorted(point["tokens_per_s_per_user"] for point in expected[series.mode])
        assert np.allclose(series.x, speeds, rtol=1e-12)


def test_every_candidate_is_on_the_front_or_behind_it() -> None:
    table = points()
    info = front_info(answer().document, table, cloud=True)
    rows = [row for series in (*info.fronts, *info.behind) for row in series.rows]
    assert len(set(rows)) == len(rows)
    assert table["feasible"].to_numpy()[rows].all()
    few = [mode for mode, count in table["mode"].value_counts().items() if count < CLOUD / 5]
    assert few
    for mode in few:
        assert (table["mode"].to_numpy()[rows] == mode).sum() == (
            table["feasible"] & (table["mode"] == mode)
        ).sum()


def test_the_best_is_marked_where_the_document_has_it() -> None:
    best = answer().document["best"]
    info = front_info(answer().document, points())
    assert info.best is not None
    assert info.best.label == best["label"]
    assert info.best.x == pytest.approx(best["tokens_per_s_per_user"])
    assert info.best.y == pytest.approx(best["tokens_per_s_per_gpu"])


def test_intervals_of_a_deployment_become_error_bars_and_that_of_speed_is_turned_over() -> None:
    best = {
        **answer().document["best"],
        "intervals": {"tpot_ms": [10.0, 20.0], "tokens_per_s_per_gpu": [1.0, 9.0]},
    }
    found = marked(best, points(), "tokens_per_s_per_user", "tokens_per_s_per_gpu")
    assert found is not None
    assert found.x_interval == (50.0, 100.0)
    assert found.y_interval == (1.0, 9.0)
    document = {**answer().document, "best": best}
    star = front_figure(front_info(document, points())).data[-1]
    assert star.error_x.array[0] == pytest.approx(100.0 - found.x)


def test_limits_of_the_slo_are_lines_and_on_a_logarithmic_axis_their_text_is_where_the_line_is() -> None:
    slo = answer().document["job"]["slo"]
    assert limit_on(slo, "tokens_per_s_per_user") == 1000.0 / slo["tpot_ms"]
    assert limit_on(slo, "ttft_percentile_ms") == slo["ttft_ms"]
    assert limit_on(slo, "request_latency_ms") is None
    figure = front_figure(front_info(answer().document, points()))
    (line,) = figure.layout.shapes
    (text,) = figure.layout.annotations
    assert text.x == pytest.approx(math.log10(line.x0))


def test_nothing_feasible_is_said_not_drawn() -> None:
    impossible = answer("IMPOSSIBLE")
    with pytest.raises(NothingToShowError, match="no deployment meets the limits"):
        front_info(impossible.document, points_of(impossible.document, impossible.candidates))


def test_an_axis_without_values_is_said_not_drawn() -> None:
    unknown = points().assign(input_tokens_per_s_per_gpu=np.nan)
    with pytest.raises(NothingToShowError, match="Input throughput"):
        front_info(answer().document, unknown, y="input_tokens_per_s_per_gpu")


@given(st.integers(1, 4000), st.integers(20, 500), st.integers(0, 2**32 - 1))
def test_thinning_keeps_the_extremes_to_a_tile_and_no_more_than_it_may(
    rows: int, most: int, seed: int
) -> None:
    x, y = np.random.default_rng(seed).lognormal(size=(2, rows))
    kept = thinned(x, y, most)
    assert len(set(kept)) == len(kept) <= max(2 * most, 16)
    assert len(kept) == rows if rows <= most else len(kept) >= 1
    assert all(a < b for a, b in pairwise(kept))
    tile = (math.log(x.max()) - math.log(x.min())) / max(int(math.sqrt(2 * most)), 4)
    assert math.log(x[kept].max()) >= math.log(x.max()) - tile - 1e-9
