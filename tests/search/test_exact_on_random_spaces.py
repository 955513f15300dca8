"""The exhaustive search against brute force on random jobs and random small spaces, in every partition."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from afd_dse.cost.scenario import Scenario
from afd_dse.search.objective import Objective
from afd_dse.search.pool import pareto_rows, scores
from afd_dse.search.run import search
from afd_dse.search.space import Space
from afd_dse.spec.cells import PARTITIONS, Partition
from tests.search.brute_force import everything
from tests.strategies import build, space

OBJECTIVES: tuple[Objective, ...] = ("throughput_per_gpu", "total_throughput", "usd_per_mtok")
MODELS = ("Qwen/Qwen3-30B-A3B-FP8", "openai/gpt-oss-120b", "Qwen/Qwen3-32B-FP8", "zai-org/GLM-4.5-Air-FP8")
# Brute force beyond this is skipped: it would take seconds.
MOST_ROWS = 5_000
# Share of the speed per user that such a step may cost.
KERNEL_STEPS = 0.01


@st.composite
def jobs(draw: st.DrawFn) -> Scenario:
    """A model of the catalogue on one or two pools of up to eight GPUs, with limits from none to hard."""
    names = draw(
        st.lists(st.sampled_from(["h100_sxm", "h200_sxm", "b200_sxm"]), min_size=1, max_size=2, unique=True)
    )
    pools = [
        {
            "name": name,
            "accelerator": name,
            "count": draw(st.sampled_from([3, 4, 6] if len(names) > 1 else [4, 6, 8])),
        }
        for name in names
    ]
    limits: dict[str, Any] = {
        "ttft_ms": draw(st.sampled_from([None, 300, 2000])),
        "tpot_ms": draw(st.sampled_from([None, 15, 50])),
        "percentile": draw(st.sampled_from([50, 95])),
    }
    return build(
        draw(st.sampled_from(MODELS)),
        pools,
        isl=draw(st.sampled_from([300, 2048])),
        osl=draw(st.sampled_from([64, 512])),
        slo={key: value for key, value in limits.items() if value is not None},
    )


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """A space with a few values in each list."""

    def some(values: list[int], most: int = 2) -> list[int]:
        return sorted(draw(st.lists(st.sampled_from(values), min_size=1, max_size=most, unique=True)))

    return space(
        gpus=some([1, 2, 3, 4]),
        ffn_gpus=some([1, 2, 4]),
        tp=some([1, 2, 4]),
        moe_tp=some([1, 2], 1),
        micro_batches=some([1, 2, 3], 1),
        chunk_tokens=some([512, 2048, 8192]),
        batch={"first": draw(st.sampled_from([1, 4])), "last": 64, "per_octave": 1},
        policies=[
            "decode_priority",
            *draw(st.sampled_from([["chunked"], ["prioritized"], ["chunked", "tile_shared"]])),
        ],
        decode_shares=[0.5],
    )


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.text)
@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(case=jobs(), where=spaces(), objective=st.sampled_from(OBJECTIVES))
def test_no_deployment_of_a_random_space_beats_what_the_search_finds(
    partition: Partition, case: Scenario, where: Space, objective: Objective
) -> None:
    """In the objective, and in speed per user along the whole front but for the steps of measured kernels.

    Where a larger batch is faster than a smaller one, the smaller is left out, and the larger may then be throttled.
    """
    mode = search(case, where, [("mode", partition)], objective, method="exhaustive").modes[0]
    if not 0 < mode.considered * len(where.whole.policies) <= MOST_ROWS:
        return
    oracle = everything(case, where.whole, partition)
    best = scores(case, objective, oracle).max()
    if not np.isfinite(best):
        return
    assert mode.found is not None
    assert scores(case, objective, mode.found).max() >= best - 1e-6 * abs(best)
    found, exact = mode.found.take(pareto_rows(mode.found)), oracle.take(pareto_rows(oracle))
    x, y = (found.evaluation.metrics[name] for name in ("tokens_per_s_per_user", "tokens_per_s_per_gpu"))
    u, v = (exact.evaluation.metrics[name] for name in ("tokens_per_s_per_user", "tokens_per_s_per_gpu"))
    assert ((x[:, None] >= u * (1.0 - KERNEL_STEPS)) & (y[:, None] >= v * (1.0 - 1e-6))).any(axis=0).all()


def test_most_random_spaces_are_compared() -> None:
    """The limit on rows must not empty the test above."""
    case = build(MODELS[0], [{"name": "main", "accelerator": "h100_sxm", "count": 8}])
    where = space(
        gpus=[1, 4],
        ffn_gpus=[1, 2],
        tp=[1, 2],
        micro_batches=[2],
        chunk_tokens=[512, 2048],
        policies=["chunked"],
    )
    sizes = [
        search(case, where, [("mode", p)], "throughput_per_gpu", method="exhaustive").modes[0].considered
        for p in PARTITIONS
    ]
    assert np.mean(np.array(sizes) <= MOST_ROWS) > 0.8
