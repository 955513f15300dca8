import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.cost.columns import Candidates
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.search.encoding import SampledSpace
from afd_dse.search.moves import moves, nearby_loads
from afd_dse.search.proposals import Front, Outlook, proposed
from afd_dse.search.surrogate import Doubts, Expected, Surrogate
from afd_dse.spec.cells import parse_partition
from tests.strategies import build, space

CASE = build("Qwen/Qwen3-30B-A3B-FP8", [{"name": "main", "accelerator": "h100", "count": 8}])
WHERE = space(gpus=[1, 2, 4], ffn_gpus=[1, 2], tp=[1, 2], chunk_tokens=[2048, 8192])
NOTHING = Front(np.zeros(0), np.zeros(0), 0.0)
values = st.lists(st.tuples(st.floats(0.1, 100.0), st.floats(0.1, 100.0)), min_size=1, max_size=12)


def area(reached: Front) -> float:
    slower = np.append(reached.speed[1:], reached.slowest)
    return float(((reached.speed - slower) * reached.throughput).sum())


@settings(max_examples=100, deadline=None)
@given(
    points=values,
    more=st.tuples(st.floats(0.1, 100.0), st.floats(0.1, 100.0)),
    slowest=st.sampled_from([0.0, 20.0]),
)
def test_the_gain_of_a_point_is_the_area_that_the_front_grows_by(
    points: list[tuple[float, float]], more: tuple[float, float], slowest: float
) -> None:
    reached = Front.of(*np.array([point for point in points if point[0] > slowest]).reshape(-1, 2).T, slowest)
    more = (max(more[0], slowest), more[1])
    gain = reached.gain(np.array([more[0]]), np.array([more[1]]))[0]
    assert gain == pytest.approx(area(reached.with_point(*more)) - area(reached), rel=1e-9, abs=1e-9)
    assert gain >= 0.0


def test_without_a_front_the_gain_is_all_that_a_point_dominates() -> None:
    assert NOTHING.gain(np.array([3.0]), np.array([4.0])).tolist() == [12.0]


def test_what_is_slower_than_the_slowest_adds_nothing() -> None:
    reached = Front.of(np.array([50.0]), np.array([1.0]), 20.0)
    assert reached.gain(np.array([19.0, 21.0]), np.array([9.0, 9.0])).tolist() == [0.0, 8.0]


def by_batch(candidates: Candidates, speed: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Speed falls and throughput grows with the batch; ``speed`` is a factor of both."""
    batch = np.log2(candidates.number("batch_size") + 2.0)
    return speed * 10.0 / batch, speed * batch


class Known(Surrogate):
    """Candidates of which all is known but a factor with ``doubt``; those of one batch turn out alike."""

    def __init__(self, doubt: float = 0.0) -> None:
        self.doubt = doubt

    def together(self, x: FloatArray) -> tuple[Expected, Doubts]:
        expected = Expected(np.zeros(len(x)), np.full(len(x), self.doubt), np.ones(len(x)))
        return expected, Doubts(x * 1e9, np.zeros((0, len(x))))


def ask(known: list[IntArray], reached: Front) -> tuple[list[IntArray], SampledSpace]:
    """Ten proposals where speed falls and throughput grows with the load."""
    held = SampledSpace(CASE, WHERE, parse_partition("PA DA | PF DF"))
    begin = held.canonical(np.zeros((1, len(held.sizes)), dtype=np.int64))
    found = proposed(
        held,
        nearby_loads(held, moves(held)),
        begin,
        np.reshape(known, (-1, len(held.sizes))).astype(np.int64),
        Outlook(Known(), by_batch, reached, 1),
        np.random.default_rng(1),
        10,
    )
    return found, held


def test_proposals_are_new_distinct_canonical_and_fit_the_cluster() -> None:
    open_wide = Front(np.array([0.2]), np.array([0.2]), 0.0)
    first, held = ask([], open_wide)
    known = {row.tobytes() for row in first}
    second, _ = ask(first, open_wide)
    assert len(known) == len(first) > 2
    assert second
    assert not known & {row.tobytes() for row in second}
    table = np.stack(second)
    assert np.array_equal(held.canonical(table), table)
    assert held.fits(table).all()


@pytest.mark.parametrize("fast", [False, True])
def test_proposals_lie_where_the_front_is_open(fast: bool) -> None:
    # One point that nothing at the other end beats.
    closed = (2.0, 100.0) if fast else (100.0, 2.0)
    found, held = ask([], Front(np.array([closed[0]]), np.array([closed[1]]), 0.0))
    loads = np.array([row[held.index["load"]] for row in found]) / held.sizes[held.index["load"]]
    assert len(loads)
    assert (loads < 0.9).all() if fast else (loads > 0.1).all()
    assert np.median(loads) < 0.5 if fast else np.median(loads) > 0.5


def test_nothing_is_proposed_where_nothing_can_widen_the_front() -> None:
    assert ask([], Front(np.array([1e3]), np.array([1e3]), 0.0))[0] == []


def at_batches(*batches: float) -> Candidates:
    """One layout under several batches."""
    held = SampledSpace(CASE, WHERE, parse_partition("PA DA | PF DF"))
    one = held.decode(np.zeros((len(batches), len(held.sizes)), dtype=np.int64))
    return one.replace(batch_size=np.array(batches))


def test_doubt_is_worth_trying_where_nothing_is_expected() -> None:
    candidates = at_batches(1.0, 8.0)
    closed = Front.of(*by_batch(candidates, np.full(2, 1.1)), 0.0)
    assert Outlook(Known(0.0), by_batch, closed, 1).gain(candidates).tolist() == [0.0, 0.0]
    assert (Outlook(Known(0.3), by_batch, closed, 1).gain(candidates) > 0.0).all()


def test_one_of_those_that_turn_out_alike_is_chosen_before_the_next_is_judged() -> None:
    candidates = at_batches(8.0, 8.0, 1.0)
    closed = Front.of(*by_batch(candidates, np.full(3, 1.1)), 0.0)
    assert sorted(Outlook(Known(0.3), by_batch, closed, 1).best(candidates, 3)) == [0, 2]
