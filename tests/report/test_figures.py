import pytest

from afd_dse.report.figures import (
    NothingToShowError,
    front_figure,
    front_info,
    mode_colours,
    modes_figure,
    modes_info,
    step_figure,
    step_info,
)
from tests.results.examples import answer


def test_the_front_shows_every_mode_the_best_and_the_limit() -> None:
    document = answer().document
    info = front_info(document)
    assert [series.mode for series in info.series] == [mode["name"] for mode in document["modes"]]
    assert info.best == (
        document["best"]["tokens_per_s_per_user"],
        document["best"]["tokens_per_s_per_gpu"],
        document["best"]["label"],
    )
    assert info.least_tokens_per_s_per_user == pytest.approx(50.0)
    figure = front_figure(info)
    assert [trace.name for trace in figure.data] == [*(series.mode for series in info.series), "best"]
    assert figure.layout.shapes[0].x0 == pytest.approx(50.0)


def test_the_best_point_lies_on_the_front_of_its_mode() -> None:
    document = answer().document
    series = next(s for s in front_info(document).series if s.mode == document["best"]["mode"])
    assert document["best"]["tokens_per_s_per_gpu"] in series.tokens_per_s_per_gpu


def test_modes_are_compared_in_the_order_of_the_objective() -> None:
    info = modes_info(answer().document)
    assert list(info.values) == sorted(info.values, reverse=True)
    assert list(modes_figure(info).data[0].x) == list(info.values)
    assert info.unit == "tokens/s per GPU"


def test_work_of_a_decode_step_is_stacked_by_station() -> None:
    document = answer().document
    info = step_info(document)
    figure = step_figure(info)
    assert [trace.name for trace in figure.data] == [
        "attention",
        "FFN",
        "links",
        "outside the layers",
        "step",
    ]
    first = document["best_per_mode"][info.modes[0]]["breakdown"]["decode"]
    assert info.parts[0][2][0] == first["attention_ms"]
    assert list(figure.data[-1].x) == list(info.step_ms)


@pytest.mark.parametrize("info_of", [front_info, modes_info, step_info])
def test_a_chart_without_data_says_why(info_of) -> None:
    with pytest.raises(NothingToShowError, match="no "):
        info_of(answer("IMPOSSIBLE").document)


def test_a_mode_has_one_colour_in_all_charts() -> None:
    document = answer().document
    colours = mode_colours(document)
    assert len(set(colours.values())) == len(colours)
    assert {s.mode: s.colour for s in front_info(document).series} == colours
    info = modes_info(document)
    assert dict(zip(info.modes, info.colours, strict=True)) == colours
