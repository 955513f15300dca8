import numpy as np
import pytest

from afd_dse.results.layout import Group, describe, groups_of, label, labels, units_of
from afd_dse.spec.cells import PARTITIONS, Cell, parse_partition
from tests.strategies import block, layout, scenario

WHOLE = tuple(Cell)


def group(cells: tuple[Cell, ...] = WHOLE, **fields: int) -> Group:
    known = dict.fromkeys(("tp", "dp", "cp", "pp", "moe_tp", "ep", "replicas", "micro_batches"), 1)
    return Group(cells=cells, **(known | {"pool": 0, "redundant": 0, "dense": False} | fields))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "TP1"),
        ({"tp": 8, "moe_tp": 8}, "TP8"),
        ({"tp": 8, "ep": 8}, "TEP8"),
        ({"dp": 8, "ep": 8}, "DEP8"),
        ({"tp": 4, "dp": 8, "ep": 32}, "TP4DP8-EP32"),
        ({"dp": 8, "moe_tp": 8}, "DP8-ETP8"),
        ({"tp": 8, "moe_tp": 2, "ep": 4}, "TP8-ETP2EP4"),
        ({"tp": 8, "moe_tp": 8, "pp": 2}, "TP8PP2"),
        ({"pp": 4}, "TP1PP4"),
        ({"dp": 32, "ep": 32, "redundant": 32}, "DEP32+32R"),
        ({"tp": 2, "cp": 4, "ep": 8}, "TP2CP4-EP8"),
        ({"tp": 4, "moe_tp": 4, "dense": True}, "TP4"),
        ({"tp": 2, "cp": 2, "moe_tp": 4, "dense": True}, "TP2CP2"),
    ],
)
def test_a_group_is_named_in_the_short_form_of_the_field(fields: dict[str, int], expected: str) -> None:
    assert group(**fields).cut == expected


def named(text: str, *groups: Group, case: str = "deepseek-v3 on b200") -> str:
    return label(scenario(case), parse_partition(text), groups)


def test_replicas_stand_in_front_and_decode_follows_prefill() -> None:
    prefill = group((Cell.PA, Cell.PF), dp=8, ep=8, replicas=2)
    decode = group((Cell.DA, Cell.DF), dp=32, ep=32)
    assert named("PA PF DA DF", group(tp=8, moe_tp=8)) == "TP8"
    assert named("PA PF DA DF", group(tp=8, moe_tp=8, replicas=3)) == "3xTP8"
    assert named("PA PF | DA DF", prefill, decode) == "2xDEP8 + 1xDEP32"


def test_attention_and_ffn_apart_are_named_by_their_gpus() -> None:
    attention, ffn = group((Cell.PA, Cell.DA), dp=48), group((Cell.PF, Cell.DF), ep=16)
    assert named("PA DA | PF DF", attention, ffn) == "48A16F"
    prefill = group((Cell.PA, Cell.PF), dp=8, ep=8, replicas=4)
    da, df = group((Cell.DA,), dp=24, replicas=2), group((Cell.DF,), ep=8, replicas=2)
    assert named("PA PF | DA | DF", prefill, da, df) == "4xDEP8 + 2x(24A8F)"
    cut = group((Cell.DA,), tp=4, dp=6, replicas=2), group((Cell.DF,), moe_tp=2, ep=4, replicas=2)
    assert named("PA PF | DA | DF", prefill, *cut) == "4xDEP8 + 2x(24A(TP4)8F(ETP2))"


def test_a_dense_ffn_cut_by_tensor_parallelism_is_nothing_unusual() -> None:
    attention = group((Cell.PA, Cell.DA), tp=4, dense=True)
    ffn = group((Cell.PF, Cell.DF), moe_tp=2, dense=True)
    assert named("PA DA | PF DF", attention, ffn, case="qwen3-32b on h100") == "4A(TP4)2F"


def test_groups_that_share_phases_are_named_by_their_cells() -> None:
    groups = group((Cell.PA,), dp=8), group((Cell.PF, Cell.DF), ep=16), group((Cell.DA,), dp=24)
    assert named("PA | PF DF | DA", *groups) == "8PA+16F+24DA"


def test_pools_are_named_where_the_cluster_has_several() -> None:
    case = "glm-4.5 on h200 and b200"
    prefill = group((Cell.PA, Cell.PF), dp=8, ep=8, pool=1)
    da, df = group((Cell.DA,), dp=8, pool=0), group((Cell.DF,), ep=8, pool=1)
    assert named("PA PF | DA | DF", prefill, da, df, case=case) == "1xDEP8@new + 1x(8A@old+8F@new)"


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: p.text)
def test_every_partition_has_a_label_and_words_with_all_its_gpus(partition) -> None:
    case = scenario()
    candidates = layout(case, partition, np.random.default_rng(1))
    groups = groups_of(case, candidates, 0)
    assert [g.cells for g in groups] == list(partition.groups)
    assert sum(len(unit) for unit in units_of(partition, groups)) == len(groups)
    words = describe(case, partition, groups)
    assert label(case, partition, groups)
    assert all(f"{g.gpus} b200_sxm GPU" in words for g in groups)


def test_labels_of_a_block_are_those_of_its_rows() -> None:
    case = scenario()
    candidates = block(case, 7)
    candidates = candidates.take(np.array([3, 1, 3, 0, 1])).replace(batch_size=np.arange(1.0, 6.0))
    alone = [
        label(case, PARTITIONS[int(partition)], groups_of(case, candidates, row))
        for row, partition in enumerate(candidates.integer("partition"))
    ]
    assert labels(case, candidates) == alone
