"""Sharing policies by name, and what frameworks can run of them."""

import numpy as np
import pytest

from afd_dse.cost.columns import CHUNKED, PRIORITIZED, TILE_SHARED
from afd_dse.cost.expert_barrier import HISTORY, PREFETCH
from afd_dse.results.policies import RELEASED, launchable, policy_code, policy_name
from afd_dse.spec.cells import PARTITIONS, parse_partition
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
    one = layout(
        case,
        PARTITIONS[0],
        np.random.default_rng(0),
        plain=True,
        policy=CHUNKED,
        decode_expert_policy=HISTORY,
    )
    one = one.replace(prefill_expert_policy=HISTORY)
    assert launchable(case, one, 0) is not None
    assert launchable(case, one.replace(policy=TILE_SHARED), 0) is None
    assert launchable(case, one.replace(decode_expert_policy=PREFETCH), 0) is None


@pytest.mark.parametrize(
    ("framework", "prefill", "decode"),
    [("trtllm", False, True), ("sglang", True, True), ("vllm", False, True)],
)
def test_a_sequence_is_spread_over_gpus_in_the_phases_in_which_a_release_can(
    framework: str, prefill: bool, decode: bool
) -> None:
    case = build(pools=[{"name": "main", "accelerator": "h200", "count": 64}], framework=framework)
    one = layout(case, PD, np.random.default_rng(0), plain=True)
    one = one.replace(prefill_cp=1, decode_cp=1)
    assert launchable(case, one, 0) == RELEASED
    for phase, possible in (("prefill", prefill), ("decode", decode)):
        words = launchable(case, one.replace(**{f"{phase}_cp": 4}), 0)
        assert (words is not None) == possible
        assert words != RELEASED
    both = launchable(case, one.replace(prefill_cp=4, decode_cp=4), 0)
    assert (both is not None) == (prefill and decode)
