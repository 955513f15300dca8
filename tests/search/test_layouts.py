import numpy as np
import pytest

from afd_dse.cost.columns import ALL_COLUMNS
from afd_dse.cost.evaluate import evaluate
from afd_dse.search.layouts import Sharing, blocks, enumerate_layouts, expand, layout_count
from afd_dse.spec.cells import PARTITIONS, Phase, parse_partition
from tests.search.brute_force import everything
from tests.strategies import build, grid, scenario

SMALL = grid(
    gpus=[2, 4, 6],
    ffn_gpus=[2, 4],
    tp=[1, 2, 4],
    moe_tp=[1, 2],
    cp=[1, 2],
    pp=[1, 2],
    redundant=[0, 4],
    batch={"first": 4, "last": 4, "per_octave": 1},
    chunk_tokens=[1024],
    policies=["chunked"],
)
MOE = build("Qwen/Qwen3-30B-A3B-FP8", [{"name": "main", "accelerator": "h100", "count": 8}])
DENSE = scenario("qwen3-32b on h100")


def keys(columns: dict[str, np.ndarray], names: list[str]) -> list[tuple[float, ...]]:
    return sorted(zip(*(columns[name].tolist() for name in names), strict=True))


@pytest.mark.parametrize("case", [MOE, DENSE], ids=["moe", "dense"])
@pytest.mark.parametrize("partition", [p for p in PARTITIONS if p.is_joint], ids=lambda p: p.text)
def test_layouts_of_a_joint_partition_are_all_legal_combinations(case, partition) -> None:
    names = [name for name in ALL_COLUMNS if name not in ("batch_size", "chunk_tokens")]
    found = enumerate_layouts(case, partition, tuple(Phase), SMALL)
    oracle = everything(case, SMALL, partition).candidates
    one_replica = oracle.take(oracle.integer("decode_replicas") == 1)
    assert keys(dict(found.columns), names) == keys(dict(one_replica.columns), names)


def test_no_layout_is_listed_twice_or_larger_than_the_cluster() -> None:
    for partition in PARTITIONS:
        found = enumerate_layouts(MOE, partition, (Phase.DECODE,), SMALL)
        assert layout_count(MOE, partition, (Phase.DECODE,), SMALL) == len(found)
        table = np.stack([found.number(name) for name in ALL_COLUMNS], axis=1)
        assert len(np.unique(table, axis=0)) == len(table) > 0


def test_nothing_is_enumerated_where_nothing_fits() -> None:
    tiny = build(pools=[{"name": "main", "accelerator": "b200", "count": 1}])
    assert len(enumerate_layouts(tiny, PARTITIONS[0], tuple(Phase), SMALL)) == 0


def test_a_dense_model_has_no_attention_dp_around_its_ffn() -> None:
    found = enumerate_layouts(DENSE, PARTITIONS[0], tuple(Phase), SMALL)
    assert (found.integer("decode_dp") == 1).all()
    assert (found.integer("decode_ep") == 1).all()


def test_expansion_is_the_product_of_layouts_chunks_and_policies() -> None:
    layouts = enumerate_layouts(MOE, PARTITIONS[0], tuple(Phase), SMALL)
    rows = expand(layouts, np.array([512.0, 2048.0, 8192.0]), [Sharing(0), Sharing(1)])
    assert len(rows) == 6 * len(layouts)
    table = np.stack([rows.number(name) for name in ALL_COLUMNS], axis=1)
    assert len(np.unique(table, axis=0)) == len(table)


def test_blocks_are_the_candidates_in_order() -> None:
    layouts = enumerate_layouts(MOE, parse_partition("PA PF | DA | DF"), (Phase.DECODE,), SMALL)
    parts = list(blocks(layouts, rows=7))
    assert [len(part) for part in parts[:-1]] == [7] * (len(parts) - 1)
    assert (
        np.concatenate([part.integer("decode_tp") for part in parts]).tolist()
        == layouts.integer("decode_tp").tolist()
    )


def test_every_layout_of_a_partition_can_be_evaluated() -> None:
    for partition in PARTITIONS:
        if partition.is_joint:
            layouts = enumerate_layouts(MOE, partition, tuple(Phase), SMALL)
            found = evaluate(MOE, layouts.replace(batch_size=1.0, chunk_tokens=2048.0))
            assert np.isfinite(found.metrics["tpot_s"]).all()
