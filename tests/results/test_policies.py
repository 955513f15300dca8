"""Sharing policies by name, and what frameworks can run of them."""

import numpy as np
import pytest

from afd_dse.cost.columns import CHUNKED, PHASES, PRIORITIZED, TILE_SHARED, Candidates
from afd_dse.cost.expert_barrier import HISTORY, PREFETCH
from afd_dse.cost.scenario import Scenario
from afd_dse.results.policies import RELEASED, launchable, policy_code, policy_name
from afd_dse.spec.cells import PARTITIONS, Partition, parse_partition
from tests.strategies import build, layout, scenario

SHARED_EXPERTS, PD = parse_partition("PA | DA | PF DF"), parse_partition("PA PF | DA DF")


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.text)
def test_every_policy_that_means_something_is_read_back_by_its_name(partition: object) -> None:
    assert isinstance(partition, type(PD))
    codes = (CHUNKED, PRIORITIZED, TILE_SHARED) if partition.shares_steps else (CHUNKED, TILE_SHARED)
    for code in codes if partition.is_joint else (CHUNKED,):
        name = policy_name(partition, code)
        assert (name is None) != partition.is_joint
        if name is not None:
            assert policy_code(partition, name) == (code, "", "")


@pytest.mark.parametrize(
    ("partition", "name", "message"),
    [
        (SHARED_EXPERTS, "prioritized", "do not share steps"),
        (PARTITIONS[0], "decode_priority", "share steps"),
        (PD, "tile_shared", "no group serves both phases"),
        (PD, "fair", "unknown policy"),
    ],
)
def test_a_policy_without_meaning_is_refused(partition: object, name: str, message: str) -> None:
    assert isinstance(partition, type(PD))
    _, found, remedy = policy_code(partition, name)
    assert message in found
    assert remedy


def test_no_release_shares_by_tiles_or_copies_experts_while_it_serves() -> None:
    case = scenario()
    one = one_of(case, PARTITIONS[0], prefill_expert_policy=HISTORY, decode_expert_policy=HISTORY)
    assert launchable(case, one, 0) is not None
    assert launchable(case, one.replace(policy=TILE_SHARED), 0) is None
    assert launchable(case, one.replace(decode_expert_policy=PREFETCH), 0) is None


def one_of(case: Scenario, partition: Partition, **columns: int) -> Candidates:
    """A candidate without anything that takes more than the partition itself."""
    degrees = {"tp": 1, "dp": 4, "cp": 1, "pp": 1, "moe_tp": 1, "ep": 4, "micro_batches": 1}
    plain = {f"{phase}_{name}": degree for phase in PHASES for name, degree in degrees.items()}
    one = layout(case, partition, np.random.default_rng(0), plain=True, policy=CHUNKED)
    return one.replace(**(plain | columns))


def served_by(framework: str, model: str = "Qwen/Qwen3-30B-A3B-FP8") -> Scenario:
    return build(model, [{"name": "main", "accelerator": "h200", "count": 64}], framework=framework)


def test_the_plugin_of_vllm_runs_two_micro_batches_of_its_models_where_attention_leads() -> None:
    case, split = served_by("vllm"), parse_partition("PA PF | DA | DF")
    runs = one_of(case, split, decode_micro_batches=2, decode_ep=2)
    assert "afd-plugin" in (launchable(case, runs, 0) or "")
    assert launchable(case, runs.replace(decode_micro_batches=3), 0) is None
    assert launchable(case, runs.replace(decode_ep=8), 0) is None
    assert launchable(served_by("vllm", "openai/gpt-oss-120b"), runs, 0) is None


@pytest.mark.parametrize(("framework", "takes"), [("vllm", "--enable-dbo"), ("sglang", "two-batch-overlap")])
def test_overlap_of_whole_layers_takes_its_flag(framework: str, takes: str) -> None:
    case = served_by(framework)
    assert launchable(case, one_of(case, PD), 0) == RELEASED
    both = one_of(case, PD, prefill_micro_batches=2)
    assert takes in (launchable(case, both, 0) or "")
    # Two and no more, of ranks that attend apart and spread their experts.
    for columns in ({"prefill_micro_batches": 3}, {"prefill_dp": 1, "prefill_tp": 4}, {"prefill_ep": 1}):
        assert launchable(case, both.replace(**columns), 0) is None


@pytest.mark.parametrize(
    ("framework", "attention", "experts"),
    [("trtllm", False, True), ("sglang", True, True), ("vllm", True, False)],
)
def test_an_engine_is_cut_in_two_ways_at_once_where_a_framework_does(
    framework: str, attention: bool, experts: bool
) -> None:
    case = served_by(framework)
    one = one_of(case, PD)
    assert (launchable(case, one.replace(decode_tp=2), 0) == RELEASED) == attention
    assert (launchable(case, one.replace(decode_moe_tp=2), 0) == RELEASED) == experts
    assert (
        launchable(case, one.replace(decode_tp=4, decode_dp=1, decode_moe_tp=4, decode_ep=1), 0) == RELEASED
    )


@pytest.mark.parametrize(
    ("framework", "prefill", "decode"),
    [("trtllm", False, True), ("sglang", True, True), ("vllm", True, True)],
)
def test_a_sequence_is_spread_over_gpus_in_the_phases_in_which_a_release_can(
    framework: str, prefill: bool, decode: bool
) -> None:
    case = served_by(framework, "deepseek-ai/DeepSeek-V3")
    one = one_of(case, PD)
    assert launchable(case, one, 0) == RELEASED
    for phase, possible in (("prefill", prefill), ("decode", decode)):
        words = launchable(case, one.replace(**{f"{phase}_cp": 4}), 0)
        assert (words is not None) == possible
        assert words != RELEASED
    both = launchable(case, one.replace(prefill_cp=4, decode_cp=4), 0)
    assert (both is not None) == (framework == "vllm")


@pytest.mark.parametrize("framework", ["trtllm", "sglang", "vllm"])
def test_sequences_of_decode_are_spread_for_mla_alone_on_gpus_of_its_own(framework: str) -> None:
    grouped, latent = served_by(framework), served_by(framework, "deepseek-ai/DeepSeek-V3")
    assert launchable(latent, one_of(latent, PD, decode_cp=4), 0) is not None
    assert launchable(grouped, one_of(grouped, PD, decode_cp=4), 0) is None
    together = one_of(latent, PARTITIONS[0], prefill_cp=4, decode_cp=4)
    assert launchable(latent, together, 0) is None
    cut_twice = one_of(latent, PD, decode_cp=2, decode_tp=2, decode_dp=1)
    assert (launchable(latent, cut_twice, 0) is None) == (framework == "vllm")
