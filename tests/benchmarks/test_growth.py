"""Growth curves: what their exponents mean, that they stop where it takes too long, and that answers grow gently."""

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks import growth
from benchmarks.growth import Curve, curve, of_curve, of_models
from benchmarks.growth_chart import growth_figure
from benchmarks.jobs import deepseek, fleet
from benchmarks.process import NotMeasuredError


def point(cpu_s: float, peak_bytes: float = 2.0**30) -> dict[str, Any]:
    return {
        "wall_s": 2 * cpu_s,
        "cpu_s": cpu_s,
        "peak_bytes": peak_bytes,
        "considered": 10,
        "evaluated": 3,
    }


def curve_of(sizes: Sequence[int], seconds: Sequence[float], axis: str = "GPUs") -> Curve:
    return Curve(axis, tuple(sizes), tuple(map(point, seconds)), "")


def test_the_exponent_is_that_of_a_power_law() -> None:
    sizes = (8, 64, 256, 1024, 4096, 16384)
    assert curve_of(sizes, [0.1 * n**1.5 for n in sizes]).exponent("cpu_s") == pytest.approx(1.5)
    assert curve_of(sizes, [3.0] * 6).exponent("cpu_s") == pytest.approx(0.0, abs=1e-12)


def test_a_constant_start_does_not_flatter_the_exponent() -> None:
    sizes = (1, 10, 100, 10_000, 100_000, 1_000_000)
    assert curve_of(sizes, [5.0 + 1e-2 * n for n in sizes]).exponent("cpu_s") == pytest.approx(1.0, abs=0.03)


def test_two_sizes_have_an_exponent_and_one_has_none() -> None:
    assert curve_of((1, 2), (1.0, 4.0)).exponent("cpu_s") == pytest.approx(2.0)
    assert curve_of((1, 2, 4), (9.0, 1.0, 2.0)).exponent("cpu_s") == pytest.approx(1.0)
    assert curve_of((1,), (1.0,)).exponent("cpu_s") is None


def test_a_curve_ends_where_a_size_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def measured(name: str, *, limit_s: float, jobs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        gpus = jobs[0]["cluster"]["pools"][0]["count"]
        asked.append(gpus)
        if gpus > 64:
            raise NotMeasuredError(f"not done after {limit_s:.0f} s")
        return point(gpus / 8)

    monkeypatch.setattr(growth, "probe", measured)
    found = curve("GPUs", {n: [deepseek(gpus=n)] for n in (8, 64, 128, 1024)}, limit_s=5.0)
    assert found.sizes == (8, 64)
    assert asked == [8, 64, 128]
    assert found.gave_up == "128 GPUs: not done after 5 s"
    first = next(of_curve(found))
    assert first.value == pytest.approx(1.0)
    assert "128 GPUs: not done after 5 s" in first.note


def test_models_together_are_held_against_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = dict(zip((job["model"] for job in fleet(3, "quick")), (2.0, 5.0, 3.0), strict=True))

    def measured(name: str, *, limit_s: float, jobs: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return point(sum(seconds[job["model"]] for job in jobs) - 0.5 * (len(jobs) - 1))

    monkeypatch.setattr(growth, "probe", measured)
    figures = {figure.name: figure for figure in of_curve(of_models("quick", 3, limit_s=5.0))}
    assert figures["time over that of each alone"].value == pytest.approx(9.0 / 10.0)
    assert figures["exponent of time"].target is None


def test_the_picture_shows_every_point_and_the_exponents() -> None:
    curves = [
        curve_of((8, 128, 1024), (2.0, 4.0, 32.0)).document(),
        curve_of((1, 2), (2.0, 5.0), "pools").document(),
        curve_of((1, 2), (2.0, 4.0), "models").document(),
    ]
    figure = growth_figure(curves)
    assert [list(trace.x) for trace in figure.data] == [[8, 128, 1024], [1, 2], [1, 2]] * 2
    assert list(figure.data[0].y) == [2.0, 4.0, 32.0]
    assert list(figure.data[3].y) == [1.0, 1.0, 1.0]
    words = [annotation.text for annotation in figure.layout.annotations]
    assert "∝ size<sup>1.00</sup> over the larger half" in words


@pytest.mark.slow
def test_eight_times_the_cluster_takes_at_most_nine_times_as_long_and_little_memory() -> None:
    found = curve("GPUs", {n: [deepseek(gpus=n, space="quick")] for n in (128, 1024)}, limit_s=900.0)
    assert found.sizes == (128, 1024), found.gave_up
    small, large = found.points
    assert large["cpu_s"] < 9.0 * small["cpu_s"]
    assert large["peak_bytes"] < 2.0**30
    assert large["considered"] > small["considered"] > small["evaluated"] > 0
    assert (
        large["answers"][0]["best"]["tokens_per_s_per_gpu"]
        >= small["answers"][0]["best"]["tokens_per_s_per_gpu"]
    )
