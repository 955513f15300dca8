import numpy as np
import pytest

from afd_dse.cost.columns import PHASES, TILE_SHARED
from afd_dse.cost.launching import runs
from afd_dse.results.policies import launchable
from afd_dse.search.layouts import enumerate_layouts
from afd_dse.search.space import Grid, load_space
from afd_dse.spec.cells import PARTITIONS, Partition, Phase, parse_partition
from tests.strategies import build

FRAMEWORKS = ("trtllm", "sglang", "vllm")
PD, AFD = parse_partition("PA PF | DA DF"), parse_partition("PA PF | DA | DF")


def grid(partition: Partition) -> Grid:
    document = load_space("quick").grid(partition, Phase.DECODE).model_dump()
    return Grid.model_validate(
        document | {"gpus": [2, 4], "ffn_gpus": [1, 2], "cp": [1, 2], "micro_batches": [1, 2, 3]}
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("partition", [PARTITIONS[0], PD, AFD], ids=lambda p: p.text)
def test_many_candidates_are_told_as_one_by_one(framework: str, partition: Partition) -> None:
    case = build(
        "deepseek-ai/DeepSeek-V3", [{"name": "main", "accelerator": "h200", "count": 8}], framework=framework
    )
    block = enumerate_layouts(case, partition, tuple(Phase), grid(partition))
    rows = np.random.default_rng(0).choice(len(block), size=min(200, len(block)), replace=False)
    told = runs(case, partition, block.take(rows))
    assert told.tolist() == [launchable(case, block, int(row)) is not None for row in rows]
    if partition.text in case.framework.launches:
        whole = runs(case, partition, block)
        assert whole.any()
        assert not whole.all()


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.text)
def test_what_no_release_launches_is_not_run_however_it_is_cut(partition: Partition) -> None:
    case = build("Qwen/Qwen3-30B-A3B-FP8", [{"name": "main", "accelerator": "h200", "count": 8}])
    block = enumerate_layouts(case, partition, tuple(Phase), grid(partition))
    assert runs(case, partition, block).any() == (partition.text in case.framework.launches)
    assert not runs(case, partition, block.replace(policy=TILE_SHARED)).any()


def test_a_phase_alone_is_judged_by_itself_and_decode_that_needs_plain_prefill_is_left_out() -> None:
    pools = [{"name": "main", "accelerator": "h200", "count": 8}]
    case = build("deepseek-ai/DeepSeek-V3", pools, framework="sglang")
    decode = enumerate_layouts(case, PD, (Phase.DECODE,), grid(PD))
    spread = decode.integer(f"{PHASES[Phase.DECODE]}_cp") > 1
    told = runs(case, PD, decode, (Phase.DECODE,))
    assert spread.any()
    assert not told[spread].any()
    assert told[~spread].any()
    assert runs(case, PD, decode)[spread].any()


@pytest.mark.parametrize(
    ("framework", "run"),
    [
        ("trtllm", {(1, 1), (1, 2), (2, 1), (2, 2), (4, 2)}),
        ("sglang", {(1, 1), (2, 1), (2, 2)}),
        ("vllm", {(1, 1)}),
    ],
)
def test_pipeline_stages_of_pd_are_those_whose_kv_cache_a_framework_hands_over(
    framework: str, run: set[tuple[int, int]]
) -> None:
    pools = [{"name": "main", "accelerator": "h200", "count": 8}]
    case = build("meta-llama/Llama-3.1-70B-Instruct", pools, framework=framework)
    block = enumerate_layouts(case, PD, tuple(Phase), grid(PD).model_copy(update={"cp": [1]})).take(
        np.zeros(1, int)
    )
    stages = [(1, 1), (1, 2), (2, 1), (2, 2), (4, 2)]
    told = {
        (prefill, decode)
        for prefill, decode in stages
        if runs(case, PD, block.replace(prefill_pp=prefill, decode_pp=decode))[0]
    }
    assert told == run
    together = enumerate_layouts(case, PARTITIONS[0], tuple(Phase), grid(PARTITIONS[0]))
    together = together.take(np.flatnonzero(runs(case, PARTITIONS[0], together)))
    assert runs(case, PARTITIONS[0], together.replace(prefill_pp=2, decode_pp=2)).all()
