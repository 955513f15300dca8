"""What the descent over batches leaves out, and what it must not."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.search.descent import DIP, Descent, Points, descend, refine
from afd_dse.search.pareto import front

BATCHES = 2.0 ** np.arange(0.0, 10.25, 0.25)


class Engines:
    """Layouts with a TPOT of ``fixed + each · batch``, and a count of what was asked of them."""

    def __init__(self, fixed: FloatArray, each: FloatArray, dip: float = 0.0, most: float = np.inf) -> None:
        self.fixed, self.each, self.dip, self.most = fixed, each, dip, most
        self.asked = 0

    def __call__(self, layout: IntArray, batch: FloatArray) -> Points:
        self.asked += len(layout)
        tpot = self.fixed[layout] + self.each[layout] * batch
        # A kernel that is faster at every third batch of the grid.
        tpot = tpot * np.where(np.round(np.log2(batch) * 4.0) % 3.0 == 1.0, 1.0 - self.dip, 1.0)
        rate = (batch / tpot)[:, None]
        return Points(tpot, rate, rate, tpot <= self.most, tpot <= self.most * 1.25)


def values(found: Descent, rows: IntArray) -> tuple[FloatArray, FloatArray]:
    return found.points.tpot_s[rows], found.points.rates[rows, 0]


def front_of(tpot: FloatArray, rate: FloatArray) -> list[tuple[float, float]]:
    rows = front(-tpot, rate)
    return [(float(tpot[i]), float(rate[i])) for i in rows]


@given(
    layouts=st.lists(st.tuples(st.floats(1.0, 50.0), st.floats(0.01, 2.0)), min_size=1, max_size=30),
    dip=st.floats(0.0, DIP),
    most=st.one_of(st.just(np.inf), st.floats(5.0, 100.0)),
)
def test_the_front_of_the_whole_grid_is_found(
    layouts: list[tuple[float, float]], dip: float, most: float
) -> None:
    fixed, each = np.array(layouts).T
    everything, some = (Engines(fixed, each, dip, most) for _ in range(2))
    group = np.zeros(len(layouts), dtype=np.int64)
    whole = descend(BATCHES, group, everything, whole=True)
    found = descend(BATCHES, group, some)
    fronts = [front_of(*values(one, np.flatnonzero(one.points.holds))) for one in (whole, found)]
    assert fronts[0] == fronts[1]


def test_most_of_what_others_beat_is_left_out() -> None:
    fixed = np.linspace(10.0, 100.0, 200)
    everything, some = (Engines(fixed, np.full(200, 0.1), most=150.0) for _ in range(2))
    group = np.zeros(200, dtype=np.int64)
    descend(BATCHES, group, everything, whole=True)
    descend(BATCHES, group, some)
    assert some.asked < 0.35 * everything.asked


def test_layouts_of_different_groups_are_not_compared() -> None:
    engines = Engines(np.array([10.0, 100.0]), np.array([0.1, 0.1]))
    apart = descend(BATCHES, np.array([0, 1]), engines)
    asked = engines.asked
    descend(BATCHES, np.array([0, 0]), engines)
    assert engines.asked - asked < asked
    slow = apart.layout == 1
    assert {*BATCHES} == {*apart.batch[slow]}


def test_a_fall_that_the_ends_of_a_step_show_is_looked_into() -> None:
    """The first batch takes twice as long as all others: a kernel that is slow for one token."""

    class Slow(Engines):
        def __call__(self, layout: IntArray, batch: FloatArray) -> Points:
            points = super().__call__(layout, batch)
            tpot = np.where(batch == BATCHES[0], 2.5, 1.0) * points.tpot_s
            rate = (batch / tpot)[:, None]
            return Points(tpot, rate, rate, points.holds, points.grows)

    one = Slow(np.array([10.0, 10.5]), np.array([0.01, 0.5]))
    found = descend(BATCHES, np.zeros(2, dtype=np.int64), one)
    first = (found.layout == 0) & (found.batch == BATCHES[1])
    assert first.any()


def test_the_last_step_below_a_limit_is_narrowed_to_where_it_ends() -> None:
    engines = Engines(np.array([10.0]), np.array([0.3]), most=70.0)
    found = descend(BATCHES, np.zeros(1, dtype=np.int64), engines)
    refined: list[tuple[IntArray, FloatArray]] = []

    def at(layout: IntArray, batch: FloatArray) -> Points:
        refined.append((layout, batch))
        return engines(layout, batch)

    useful = refine(found, at, [40.0, np.inf])
    batch = np.concatenate([found.batch, *(b for _, b in refined)])[useful]
    for limit, most in ((40.0, 100.0), (70.0, 200.0)):
        held = batch[10.0 + 0.3 * batch <= limit].max()
        assert 0.995 * most < held <= most
    # Of the batches that were tried only one for each limit is new.
    assert len(useful) == len(found.layout) + 2
