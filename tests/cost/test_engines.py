import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.cost.columns import Candidates
from afd_dse.cost.engines import cut_prompts, decode_alone, separate
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.scenario import Scenario
from afd_dse.cost.sharing import shared_side
from afd_dse.spec.cells import PARTITIONS, parse_partition
from tests.strategies import block, build, layout, scenario, scenario_names, seeds

SHARED_EXPERTS = parse_partition("PA | DA | PF DF")
SHARED_SIDES = tuple(p for p in PARTITIONS if p.is_joint and not p.shares_steps)


def shared_experts(case: Scenario, **columns: float) -> Candidates:
    return layout(
        case,
        SHARED_EXPERTS,
        np.random.default_rng(6),
        plain=True,
        **{"batch_size": 16.0, "chunk_tokens": 2048.0, "prefill_micro_batches": 2, "decode_micro_batches": 2}
        | columns,
    )


@settings(max_examples=10)
@given(scenario_names, seeds)
def test_a_shared_group_slows_decode_and_its_tail_more(name: str, seed: int) -> None:
    case = scenario(name)
    for partition in SHARED_SIDES[:4]:
        candidates = block(case, seed, partitions=(partition,), each=2)
        alone, _ = decode_alone(case, partition, candidates)
        shared = shared_side(case, partition, candidates).decode
        assert (shared.interval_s > alone.interval_s).all()
        assert (shared.tail_s >= shared.interval_s * (1 - 1e-9)).all()


def test_prefill_slows_down_on_the_experts_that_decode_uses_too() -> None:
    case = scenario()
    candidates = shared_experts(case)
    alone = separate(case, SHARED_EXPERTS, candidates)
    shared = shared_side(case, SHARED_EXPERTS, candidates)
    assert shared.prefill.service_s[0] > alone.prefill.service_s[0]
    assert shared.slack[0] < 1.0


def test_without_prefill_load_a_shared_group_decodes_as_if_alone() -> None:
    slowdowns = []
    for osl in (64, 1024, 16384, 262144):
        case = build(isl=256, osl=osl)
        candidates = shared_experts(case)
        alone, _ = decode_alone(case, SHARED_EXPERTS, candidates)
        slowdowns.append(
            shared_side(case, SHARED_EXPERTS, candidates).decode.interval_s[0] / alone.interval_s[0] - 1
        )
    assert all(one > other > 0 for one, other in itertools.pairwise(slowdowns))
    assert slowdowns[-1] < 1e-3 < slowdowns[0]


@settings(max_examples=10)
@given(scenario_names, seeds)
def test_the_rate_that_interferes_is_the_rate_that_results(name: str, seed: int) -> None:
    """The fixed point: prefill's use of the shared group at the rate that is printed gives back the printed TPOT."""
    case = scenario(name)
    candidates = block(case, seed, partitions=SHARED_SIDES)
    once = evaluate(case, candidates).metrics
    rate = (
        candidates.number("batch_size")
        * candidates.number("decode_dp")
        * candidates.number("decode_replicas")
    )
    assert np.allclose(once["requests_per_s"], rate / (case.workload.osl * once["tpot_s"]), rtol=1e-9)


@pytest.mark.parametrize("batch", [1.0, 16.0, 128.0])
def test_the_fixed_point_of_interference_is_reached(batch: float) -> None:
    case = scenario()
    candidates = shared_experts(case, batch_size=batch)
    step = shared_side(case, SHARED_EXPERTS, candidates).decode.interval_s[0]
    alone = separate(case, SHARED_EXPERTS, candidates)
    # Written down anew: λ = B·dp/(OSL·T); the experts are busy with prefill λ · (work of a request); a decode
    # micro-batch that finds them busy waits for half the remaining half station, in every layer.
    rate = batch * candidates.number("decode_dp")[0] / (case.workload.osl * step)
    chunks = cut_prompts(case, candidates.number("chunk_tokens"))
    per_request = chunks.per_request[0] / (chunks.sequences[0] * candidates.number("prefill_dp")[0])
    busy = min(rate * alone.prefill.step.ffn_s[0] * per_request, 1.0)
    layers, ffn = case.layer_counts, alone.prefill_stations.ffn.seconds[0]
    wait = busy * 0.5 * (ffn**2 @ layers) / (ffn @ layers) / 2.0
    quiet = alone.decode.step.seconds[0]
    m = candidates.number("decode_micro_batches")[0]
    stations = alone.decode_stations
    parts = [stations.attention, stations.to_ffn, stations.ffn, stations.to_attention]
    columns = [part.seconds[0] for part in parts]

    def pipeline(extra: float) -> float:
        visits = np.stack([column + (extra if number == 2 else 0.0) for number, column in enumerate(columns)])
        slowest, total = visits.max(axis=0), visits.sum(axis=0)
        period = np.maximum(m * slowest, total)
        return float(period @ layers + (total - period + (m - 1) * slowest) @ layers / layers.sum())

    assert step == pytest.approx(quiet + pipeline(wait) - pipeline(0.0), rel=1e-9)


@given(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(0, 1e5))
def test_prompts_are_cut_into_equal_pieces_that_fit(isl: float, room: float, prefix: float) -> None:
    base = scenario()
    case = replace(base, workload=replace(base.workload, isl=isl, prefix=prefix))
    chunks = cut_prompts(case, np.array([room]))
    pieces, sequences, piece = chunks.per_request[0], chunks.sequences[0], chunks.piece[0]
    assert pieces * piece == pytest.approx(isl)
    # A full step is packed to the last token, and no piece is longer than it.
    assert sequences * piece == pytest.approx(max(room, 1.0, piece))
    assert piece <= max(room, 1.0) * (1 + 1e-6)
    # On average a piece stands in the middle of what is not it.
    assert chunks.piece_prefix[0] == pytest.approx(prefix + (isl - piece) / 2)


def test_more_decode_in_a_chunk_leaves_less_for_prefill() -> None:
    case = build(isl=4096, osl=512)
    one = layout(case, PARTITIONS[0], np.random.default_rng(0), plain=True, chunk_tokens=2048.0, policy=0)
    steps = [evaluate(case, one.replace(batch_size=batch)) for batch in (1.0, 16.0, 64.0, 128.0)]
    slack = [float(found.slack[0, 3]) for found in steps]
    assert slack == sorted(slack, reverse=True)
    # Every step must bring 8 prompt tokens for each that it decodes: 2048 tokens hold at most 227 sequences.
    full = evaluate(case, one.replace(batch_size=228.0))
    assert full.slack[0, 3] < 0 < evaluate(case, one.replace(batch_size=160.0)).slack[0, 3]


def test_tokens_per_step_are_conserved_under_chunking() -> None:
    """In steady state prefill keeps up: its utilisation is demand over what chunks can carry."""
    case = build(isl=4096, osl=512)
    one = layout(case, PARTITIONS[0], np.random.default_rng(0), plain=True, chunk_tokens=2048.0, policy=0)
    for batch in (8.0, 64.0):
        found = evaluate(case, one.replace(batch_size=batch)).metrics
        room = 2048.0 - batch
        assert found["prefill_utilization"][0] == pytest.approx(batch * 4096 / 512 / room, rel=1e-6)
