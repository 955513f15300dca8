import json
import time
from dataclasses import replace

import numpy as np
import pytest

from afd_dse.dashboard.chart import Picture, picture, proof_words, rows_of
from afd_dse.dashboard.data import Library
from afd_dse.dashboard.view import default_view
from tests.dashboard.many import MANY, library
from tests.results.examples import answer


def shown(names: tuple[str, ...] = ("SMALL",), **changes: object) -> tuple[Picture, Library]:
    found = library(*names)
    return picture(found, replace(default_view(found), **changes)), found


def test_the_fronts_are_drawn_by_mode_and_their_points_are_offered_by_key() -> None:
    found, known = shown()
    document = answer().document
    names = [trace.name for trace in found.figure.data if trace.name and trace.showlegend is not False]
    assert names == [entry["name"] for entry in document["modes"]] + ["best within the limits"]
    drawn = [key for trace in found.figure.data if trace.name in names[:-1] for key in trace.customdata]
    assert [key for key, _ in found.options] == drawn
    rows = known.datasets["r1"].points["label"].to_numpy()
    for key, words in found.options:
        assert words.startswith(f"{rows[int(key.removeprefix('r1:'))]} (")
    assert document["best"]["label"] in found.sentence


def test_fronts_only_leaves_the_rest_out() -> None:
    everything, _ = shown()
    fronts, _ = shown(front_only=True)
    assert sum(trace.opacity is not None or trace.showlegend is False for trace in fronts.figure.data) == 0
    assert len(everything.figure.data) > len(fronts.figure.data)


def test_several_results_are_overlaid_one_front_each() -> None:
    found, known = shown(("SMALL", "SMALL"), results=("r1", "r2"), front_only=True)
    assert [trace.name for trace in found.figure.data[:2]] == [dataset.name for dataset in known]
    colours = {trace.line.color for trace in found.figure.data[:2]}
    assert len(colours) == 2


def test_a_tighter_limit_leaves_fewer_and_the_best_meets_it() -> None:
    document = answer().document
    tight = 0.7 * document["best"]["tpot_ms"]
    found, known = shown(limits={"tpot_ms": tight})
    kept = int(found.sentence.split()[0].replace(",", ""))
    assert 0 < kept < len(answer().candidates)
    assert kept == int((known.datasets["r1"].sound & (answer().candidates["tpot_ms"] <= tight)).sum())
    star = next(trace for trace in found.figure.data if trace.name == "best within the limits")
    assert star.x[0] >= 1000.0 / tight
    assert rows_of(known, replace(default_view(known), limits={"tpot_ms": tight}))["tpot_ms"].max() <= tight


def test_nothing_within_the_limits_shows_the_closest_and_names_the_limit() -> None:
    found, known = shown(limits={"tpot_ms": 0.5, "ttft_ms": 1e6})
    assert found.sentence.startswith("0 of ")
    assert "TPOT stands in the way" in found.warning
    fastest = known.datasets["r1"].points.loc[known.datasets["r1"].sound, "tpot_ms"].idxmin()
    ((key, words),) = found.options
    assert key == f"r1:{fastest}"
    assert words.startswith("closest achievable")


def test_a_looser_limit_than_the_search_had_is_warned_of() -> None:
    assert shown()[0].warning == ""
    assert "looser than the search" in shown(limits={"tpot_ms": 500.0, "ttft_ms": 1000.0})[0].warning


def test_a_job_that_nothing_can_satisfy_shows_what_comes_nearest() -> None:
    found, _ = shown(("IMPOSSIBLE",))
    assert "No candidate meets these limits" in found.warning
    assert len(found.figure.data) == 1
    nothing, _ = shown(("TOO_SMALL",))
    assert nothing.sentence.startswith("None of the ")
    assert "memory" in nothing.warning


def test_what_the_search_has_shown_is_told_under_the_chart() -> None:
    _, one = shown()
    words = next(iter(one)).document["proof"]["words"]
    assert proof_words(list(one)) == f"As searched: {words}."
    _, several = shown(("SMALL", "TOO_SMALL"))
    assert all(dataset.name in proof_words(list(several)) for dataset in several)
    assert proof_words([]) == ""


def test_no_result_is_said_not_an_error() -> None:
    assert "No result is chosen" in shown(results=())[0].sentence
    empty = Library()
    assert "run a search" in picture(empty, default_view(empty)).sentence


def test_a_move_of_a_slider_answers_within_200_ms_with_100_000_candidates() -> None:
    known = library("MANY")
    view = default_view(known)
    picture(known, view)  # first use reads tables of names and colours
    seconds, sizes = [], []
    for limit in np.linspace(8.0, 20.0, 9):
        start = time.process_time()
        found = picture(known, replace(view, limits={**view.limits, "tpot_ms": float(limit)}))
        text = json.dumps(found.figure.to_plotly_json(), default=lambda array: array.tolist())
        seconds.append(time.process_time() - start)
        sizes.append(len(text))
    assert f"of {MANY:,}" in found.sentence
    # Processor time of the server, so that busy neighbours do not count.
    assert float(np.median(seconds)) < 0.2
    assert max(sizes) < 2_000_000


@pytest.mark.parametrize(
    "y", ["usd_per_mtok", "joules_per_token", "tokens_per_s_per_mw", "ttft_percentile_ms"]
)
def test_the_best_of_an_axis_is_its_best_among_all_candidates(y: str) -> None:
    found, known = shown(y=y)
    dataset = known.datasets["r1"]
    passing = dataset.points[dataset.points["feasible"]]
    star = next(trace for trace in found.figure.data if trace.name == "best within the limits")
    expected = passing[y].max() if y == "tokens_per_s_per_mw" else passing[y].min()
    assert star.y[0] == pytest.approx(expected)
