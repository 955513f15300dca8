import numpy as np
import pytest

from afd_dse.cost.columns import ALL_COLUMNS, Candidates
from afd_dse.cost.units import DecodeUnits
from afd_dse.rows import take_rows
from afd_dse.search import decode_sample
from afd_dse.search.decode_sample import sample_decode
from afd_dse.search.pareto import front
from afd_dse.search.sides import DecodeSide, tabulate_decode
from afd_dse.spec.cells import parse_partition
from tests.strategies import build, space

CASE = build(
    "Qwen/Qwen3-30B-A3B-FP8",
    [{"name": "main", "accelerator": "h100", "count": 16}],
    slo={"ttft_ms": 1000, "tpot_ms": 20},
)
AFD = parse_partition("PA PF | DA | DF")
GRID = space(
    gpus=[1, 2, 3, 4, 6, 8, 12],
    ffn_gpus=[1, 2, 3, 4, 6, 8],
    tp=[1, 2, 4],
    micro_batches=[1, 2, 3],
    batch={"first": 1, "last": 256, "per_octave": 2},
).split


def rows(candidates: Candidates) -> list[tuple[float, ...]]:
    return list(map(tuple, np.stack([candidates.number(name) for name in ALL_COLUMNS], axis=1).tolist()))


def spanned(side: DecodeSide) -> float:
    """Area under the front of speed against requests/s per GPU of what holds both limits."""
    u: DecodeUnits = side.units
    held = (u.memory_slack >= 0.0) & (u.tpot_s <= CASE.slo.tpot_s)
    speed, rate = 1.0 / u.tpot_s[held], (u.requests_per_s / u.gpus_by_pool.sum(axis=1))[held]
    best = front(speed, rate)
    return float(((speed[best] - np.append(speed[best][1:], 0.0)) * rate[best]).sum())


def test_a_few_per_cent_of_the_decode_units_span_their_front() -> None:
    whole = tabulate_decode(CASE, AFD, GRID, lambda done: None)
    few = int(0.04 * whole.evaluated)
    shares = [spanned(sample_decode(CASE, AFD, GRID, few, seed)) / spanned(whole) for seed in range(3)]
    assert min(shares) > 0.9
    # As many at random span clearly less.
    random = []
    for seed in range(4):
        draw = np.random.default_rng(seed).permutation(len(whole.candidates))[:few]
        side = DecodeSide(whole.candidates.take(draw), take_rows(whole.units, draw), np.full(few, -1), few)
        random.append(spanned(side) / spanned(whole))
    assert np.mean(random) < 0.9


def test_units_are_distinct_counted_and_drawn_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = 0

    def counting(case: object, partition: object, candidates: Candidates) -> DecodeUnits:
        nonlocal evaluated
        evaluated += len(candidates)
        return original(CASE, AFD, candidates)

    original = decode_sample.decode_units
    monkeypatch.setattr(decode_sample, "decode_units", counting)
    one = sample_decode(CASE, AFD, GRID, 150, 1)
    assert one.evaluated == evaluated == len(one.candidates) == len(one.units.tpot_s) == 150
    assert len(set(rows(one.candidates))) == 150
    assert rows(sample_decode(CASE, AFD, GRID, 150, 1).candidates) == rows(one.candidates)
    assert rows(sample_decode(CASE, AFD, GRID, 150, 2).candidates) != rows(one.candidates)


def test_no_more_units_are_drawn_than_there_are() -> None:
    tiny = space(
        gpus=[1], ffn_gpus=[1], tp=[1], micro_batches=[1], batch={"first": 1, "last": 8, "per_octave": 1}
    ).split
    whole = tabulate_decode(CASE, AFD, tiny, lambda done: None)
    side = sample_decode(CASE, AFD, tiny, 1000, 0)
    assert side.evaluated <= whole.evaluated
    assert len(set(rows(side.candidates))) == side.evaluated > 0


def test_without_any_layout_nothing_is_drawn() -> None:
    none = space(gpus=[64], ffn_gpus=[64]).split
    assert sample_decode(CASE, AFD, none, 100, 0).evaluated == 0
