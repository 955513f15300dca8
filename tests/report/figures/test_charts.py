import numpy as np
import pandas as pd
import pytest

from afd_dse.report.figures import (
    NothingToShowError,
    decode_info,
    feasible_modes,
    first_token_info,
    memory_figure,
    memory_info,
    modes_figure,
    modes_info,
    parts_figure,
    ratio_figure,
    ratio_info,
    roofline_figure,
    roofline_info,
    sensitivity_figure,
    sensitivity_info,
)
from afd_dse.report.figures.ratio import attention_gpus, ffn_gpus
from afd_dse.report.metrics import points_of
from tests.results.examples import answer, full


def test_modes_are_the_feasible_ones_best_first_in_their_colours() -> None:
    document = answer().document
    info = modes_info(document)
    assert list(info.values) == sorted(info.values, reverse=True)
    assert info.modes[0] == document["best"]["mode"]
    assert len(set(info.colours)) == len(info.colours)
    (bars,) = modes_figure(info).data
    assert list(bars.x) == list(info.values)


def test_with_cost_as_the_objective_the_cheapest_mode_comes_first() -> None:
    document = answer().document
    cheap = {
        **document,
        "job": {**document["job"], "search": {**document["job"]["search"], "objective": "usd_per_mtok"}},
    }
    assert list(modes_info(cheap).values) == sorted(modes_info(cheap).values)


def test_a_decode_step_is_no_shorter_than_its_longest_station_and_ttft_is_the_sum_of_its_parts() -> None:
    modes = feasible_modes(answer().document)
    decode = decode_info(modes)
    for bar, step in enumerate(decode.whole_ms):
        assert step >= max(values[bar] for _, _, values in decode.parts) * (1.0 - 1e-9)
    first = first_token_info(modes)
    for bar, ttft in enumerate(first.whole_ms):
        hidden = sum(values[bar] for name, _, values in first.parts if name == "KV transfer")
        total = sum(values[bar] for _, _, values in first.parts)
        assert total - hidden <= ttft * (1.0 + 1e-9)
        assert ttft <= total * (1.0 + 1e-9)
    assert [trace.name for trace in parts_figure(decode).data][-1] == "decode step"


def test_memory_is_that_of_the_groups_and_stays_below_the_budget() -> None:
    best = answer().document["best"]
    info = memory_info(best)
    for place, group in enumerate(best["groups"]):
        assert sum(values[place] for _, _, values in info.parts) == pytest.approx(
            group["memory_gib"]["total"]
        )
        assert group["memory_gib"]["total"] <= info.budget_gib[place]
    assert len(memory_figure(info).data) == len(info.parts) + 1


def test_the_landscape_holds_the_best_candidate_of_every_ratio() -> None:
    document, candidates = answer().document, answer().candidates
    info = ratio_info(document, points_of(document, candidates))
    assert {"afd", "pd_afd"} <= {series.mode for series in info.series}
    assert info.unsplit is not None
    for series in info.series:
        rows = candidates[(candidates["mode"] == series.mode) & candidates["feasible"]]
        assert max(series.value) == pytest.approx(rows["tokens_per_s_per_gpu"].max())
        assert list(series.ratio) == sorted(set(series.ratio))
    assert ratio_figure(info).data[0].text[0].startswith("<b>")


def test_gpus_of_a_split_unit_are_those_of_its_label() -> None:
    candidates = answer().candidates
    rows = candidates[candidates["mode"] == "afd"]
    a, f = attention_gpus(rows, "decode"), ffn_gpus(rows, "decode")
    assert ((a + f) * rows["decode_replicas"] == rows["gpus"]).all()


def test_without_candidates_the_landscape_says_why() -> None:
    document = answer().document
    with pytest.raises(NothingToShowError, match=r"candidates\.parquet"):
        ratio_info(document, points_of(document, pd.DataFrame()))


def test_no_group_lies_above_the_roof() -> None:
    info = roofline_info(full().document)
    (_, peak, rate), *others = info.roofs
    assert not others
    for _, _, _, intensity, achieved, _ in info.points:
        assert achieved <= peak
        assert achieved <= 1.05 * intensity * rate
    roof = roofline_figure(info).data[0]
    assert max(roof.y) == pytest.approx(peak / 1e12)


def test_changes_are_ordered_by_what_they_do_and_measured_against_the_answer() -> None:
    info = sensitivity_info(full().document)
    sizes = [np.inf if value is None else abs(value) for value in info.recommended]
    assert sizes == sorted(sizes, reverse=True)
    assert info.answer == pytest.approx(full().document["best"]["tokens_per_s_per_gpu"], rel=3e-3)
    shown = [name for trace in sensitivity_figure(info).data[:2] for name in trace.y]
    assert sorted(shown) == sorted(info.names)


@pytest.mark.parametrize("make", [roofline_info, sensitivity_info])
def test_a_result_of_an_earlier_version_says_how_to_get_the_card(make: object) -> None:
    with pytest.raises(NothingToShowError, match="afd-dse report"):
        make(answer().document)  # type: ignore[operator]
