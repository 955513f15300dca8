import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.cost.pipeline import busy_time, disaggregated_speedup, least_micro_batches, step_time

times = st.floats(1e-6, 10.0)


def simulate(stations: list[float], layers: int, micro_batches: int) -> float:
    """FIFO stations; every micro-batch visits all stations in order, once a layer; all start at time zero."""
    free = [0.0] * len(stations)
    arrivals = [(0.0, number, 0) for number in range(micro_batches)]
    finished = 0.0
    while arrivals:
        arrivals.sort()
        at, number, visit = arrivals.pop(0)
        station = visit % len(stations)
        free[station] = max(free[station], at) + stations[station]
        if visit + 1 == layers * len(stations):
            finished = max(finished, free[station])
        else:
            arrivals.append((free[station], number, visit + 1))
    return finished


def computed(stations: list[list[float]], layers: list[int], micro_batches: float) -> float:
    """:func:`step_time` of one row; ``stations`` [stations][kinds]."""
    parts = [np.array([kinds]) for kinds in stations]
    return float(step_time(parts, np.array(layers, dtype=float), np.array([micro_batches]))[0])


@settings(max_examples=200)
@given(st.lists(times, min_size=1, max_size=4), st.integers(1, 6), st.integers(1, 5))
def test_one_kind_of_layer_takes_as_long_as_an_event_simulation_says(
    stations: list[float], layers: int, micro_batches: int
) -> None:
    expected = simulate(stations, layers, micro_batches)
    assert computed([[s] for s in stations], [layers], micro_batches) == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.tuples(times, times, times, st.integers(1, 50)), min_size=1, max_size=4))
def test_one_micro_batch_takes_the_sum_of_all_stations_of_all_kinds(
    kinds: list[tuple[float, float, float, int]],
) -> None:
    stations = [[kind[s] for kind in kinds] for s in range(3)]
    expected = sum(sum(kind[:3]) * kind[3] for kind in kinds)
    assert computed(stations, [kind[3] for kind in kinds], 1) == pytest.approx(expected, rel=1e-9)


@given(st.lists(times, min_size=1, max_size=4), st.integers(1, 20), st.integers(1, 20), st.integers(1, 5))
def test_equal_kinds_are_one_kind(stations: list[float], first: int, second: int, micro_batches: int) -> None:
    together = computed([[s] for s in stations], [first + second], micro_batches)
    apart = computed([[s, s] for s in stations], [first, second], micro_batches)
    assert apart == pytest.approx(together, rel=1e-9)


@given(
    st.lists(st.tuples(times, times), min_size=1, max_size=4),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.integers(1, 5),
    st.data(),
)
def test_a_slower_station_or_another_micro_batch_never_shortens_the_step(
    stations: list[tuple[float, float]], layers: tuple[int, int], micro_batches: int, data: st.DataObject
) -> None:
    base = [list(kinds) for kinds in stations]
    before = computed(base, list(layers), micro_batches)
    slower = [list(kinds) for kinds in base]
    station = data.draw(st.integers(0, len(base) - 1))
    slower[station][data.draw(st.integers(0, 1))] *= data.draw(st.floats(1.0, 3.0))
    assert computed(slower, list(layers), micro_batches) >= before * (1 - 1e-12)
    assert computed(base, list(layers), micro_batches + 1) >= before * (1 - 1e-12)


@given(
    st.lists(st.tuples(times, times), min_size=1, max_size=4),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.integers(1, 5),
)
def test_no_station_works_longer_than_the_step_lasts(
    stations: list[tuple[float, float]], layers: tuple[int, int], micro_batches: int
) -> None:
    counts, m = np.array(layers, dtype=float), np.array([float(micro_batches)])
    parts = [np.array([kinds]) for kinds in stations]
    step = step_time(parts, counts, m)[0]
    busy = [busy_time(part, counts, m)[0] for part in parts]
    assert max(busy) <= step * (1 + 1e-12)
    assert step <= sum(busy) * (1 + 1e-12)


def test_balanced_ping_pong_hides_all_but_the_first_round() -> None:
    # Two equal stations, two micro-batches: 2·s a layer, and one more s until the second has passed.
    assert computed([[1.0], [1.0]], [10], 2) == pytest.approx(21.0)


@pytest.mark.parametrize(("link", "fewest"), [(0.0, 2), (0.1, 3), (0.49, 3), (0.5, 3), (0.75, 4), (1.0, 4)])
def test_fewest_micro_batches_that_hide_the_links_are_those_of_megascale_infer(
    link: float, fewest: int
) -> None:
    # arXiv 2504.02263: m >= 2 (1 + T_c / T_f) with equal attention and experts.
    assert least_micro_batches([np.array([x]) for x in (1.0, link, 1.0, link)])[0] == fewest


@given(times=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=5), layers=st.integers(2, 100))
def test_with_the_fewest_micro_batches_the_slowest_station_never_waits(
    times: list[float], layers: int
) -> None:
    stations = [np.array([[time]]) for time in times]
    fewest = least_micro_batches([station[:, 0] for station in stations])[0]

    def busy(m: float) -> float:
        """Share of one more layer's time in which the slowest station works."""
        more, fewer = (
            step_time(stations, np.array([count]), np.array([m]))[0] for count in (layers + 1.0, layers)
        )
        return float(m * max(times) / (more - fewer))

    assert busy(fewest) == pytest.approx(1.0, rel=1e-6)
    if fewest > 1:
        assert busy(fewest - 1.0) < 1.0


def test_the_speed_up_from_published_step_shares_comes_out() -> None:
    # FastAFD (2026): MiniMax-M2.5 at 8K and Qwen3-235B at 8K on GB200.
    found = disaggregated_speedup(
        attention_share=np.array([0.434, 0.414]),
        dense_share=np.array([0.162, 0.157]),
        expert_share=np.array([0.405, 0.430]),
        batch_ratio=np.array([1.5, 1.5]),
        attention_nodes=np.array([17.0, 7.0]),
        ffn_nodes=np.array([1.0, 1.0]),
        micro_batches=np.array([2.0, 2.0]),
    )
    assert found == pytest.approx([1.45, 1.41], rel=0.02)
