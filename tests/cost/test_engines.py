from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd_dse.cost.engines import cut_prompts
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.phase import Cut, StepLoad, phase_stations
from afd_dse.spec.cells import PARTITIONS, Phase, parse_partition
from tests.strategies import build, layout, scenario


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


def test_a_step_that_carries_prompts_exchanges_as_prefill_does_and_one_without_as_decode() -> None:
    """On two nodes low-latency kernels send a copy to every expert's GPU: many prompt tokens would take far longer."""
    case, together = build(isl=4096, osl=512), parse_partition("PA PF DA DF")
    row = layout(
        case,
        together,
        np.random.default_rng(1),
        plain=True,
        decode_tp=1,
        decode_dp=16,
        decode_moe_tp=1,
        decode_ep=16,
        decode_micro_batches=1,
    )
    cut = Cut.of(row, Phase.DECODE)

    def exchange(phase: Phase, sequences: float, piece: float) -> float:
        load = StepLoad(*(np.array([x]) for x in (sequences, float(piece > 0), piece, 0.0, piece)))
        found = phase_stations(case, cut, phase, False, load)
        return float(found.to_ffn.seconds[0, -1])

    assert exchange(Phase.DECODE, 0.0, 2048.0) == exchange(Phase.PREFILL, 0.0, 2048.0)
    assert exchange(Phase.DECODE, 64.0, 0.0) < exchange(Phase.PREFILL, 0.0, 64.0)
    assert exchange(Phase.DECODE, 2048.0, 0.0) > 1.5 * exchange(Phase.DECODE, 0.0, 2048.0)
