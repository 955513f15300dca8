"""Reading the store: types, absence, damage, and the listing."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from afd_dse.errors import DatabaseError
from afd_dse.operators import store
from afd_dse.operators.table_schema import SCHEMAS


def put(
    root: Path, table: pa.Table, accelerator: str = "h100_sxm", framework: str = "vllm", op: str = "gemm"
) -> Path:
    path = store.table_path(accelerator, framework, op, root)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


def gemm_table() -> pa.Table:
    return pa.table(
        {
            "gemm_dtype": ["fp8", "fp8"],
            "n": [64, 64],
            "k": [32, 32],
            "kernel_source": ["a", "a"],
            "m": pa.array([1, 2], pa.int32()),
            "version": ["1", "1"],
            "latency_ms": pa.array([0.5, 0.75], pa.float32()),
        }
    )


def test_a_table_comes_with_plain_types_and_the_schema_s_column_order(tmp_path: Path) -> None:
    put(tmp_path, gemm_table().select(sorted(gemm_table().column_names)))
    table = store.load_table("h100_sxm", "vllm", "gemm", tmp_path)
    assert table is not None
    assert list(table.columns) == list(SCHEMAS["gemm"].columns)
    assert table["m"].dtype == "int64"
    assert table["latency_ms"].dtype == "float64"
    assert isinstance(table["gemm_dtype"].dtype, pd.StringDtype)
    assert table["latency_ms"].tolist() == [0.5, 0.75]


def test_only_the_rows_asked_for_become_a_frame(tmp_path: Path) -> None:
    two = pa.concat_tables([gemm_table(), gemm_table().set_column(0, "gemm_dtype", [["bfloat16", "fp8"]])])
    put(tmp_path, two)
    table = store.load_table("h100_sxm", "vllm", "gemm", tmp_path, only={"gemm_dtype": "fp8"})
    assert table is not None
    assert table["gemm_dtype"].tolist() == ["fp8"] * 3
    assert table["m"].tolist() == [1, 2, 2]
    none = store.load_table("h100_sxm", "vllm", "gemm", tmp_path, only={"gemm_dtype": "nvfp4"})
    assert none is not None
    assert none.empty


def test_a_caller_s_change_does_not_reach_the_next_caller(tmp_path: Path) -> None:
    put(tmp_path, gemm_table())
    first = store.load_table("h100_sxm", "vllm", "gemm", tmp_path)
    assert first is not None
    first["latency_ms"] = 0.0
    first["extra"] = 1
    second = store.load_table("h100_sxm", "vllm", "gemm", tmp_path)
    assert second is not None
    assert second["latency_ms"].tolist() == [0.5, 0.75]
    assert "extra" not in second


def test_what_nobody_measured_is_none_but_an_unknown_operator_is_an_error(tmp_path: Path) -> None:
    assert store.load_table("h100_sxm", "vllm", "gemm", tmp_path) is None
    with pytest.raises(DatabaseError, match="no table schema for operator 'gem'"):
        store.load_table("h100_sxm", "vllm", "gem", tmp_path)


def test_damaged_and_incomplete_tables_name_the_file_and_the_way_out(tmp_path: Path) -> None:
    path = put(tmp_path, gemm_table())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DatabaseError, match=r"gemm\.parquet: damaged operator table .*db import"):
        store.load_table("h100_sxm", "vllm", "gemm", tmp_path)
    with pytest.raises(DatabaseError, match="damaged operator table"):
        store.tables(tmp_path)
    put(tmp_path, gemm_table().drop_columns(["m"]), op="moe")
    with pytest.raises(DatabaseError, match=r"moe\.parquet: operator table lacks moe_dtype"):
        store.load_table("h100_sxm", "vllm", "moe", tmp_path)
    text = gemm_table().set_column(4, "m", pa.array(["one", "two"]))
    put(tmp_path, text, framework="sglang")
    with pytest.raises(DatabaseError, match="wrong type"):
        store.load_table("h100_sxm", "sglang", "gemm", tmp_path)


def test_the_listing_counts_rows_and_bytes(tmp_path: Path) -> None:
    path = put(tmp_path, gemm_table(), framework="vllm")
    put(tmp_path, gemm_table(), framework="sglang")
    first, second = store.tables(tmp_path)
    assert (first.framework, second.framework) == ("sglang", "vllm")
    assert second == store.StoredTable("h100_sxm", "vllm", "gemm", 2, path.stat().st_size)


def test_a_store_without_tables_or_provenance_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="has no tables"):
        store.tables(tmp_path)
    with pytest.raises(DatabaseError, match="unreadable provenance"):
        store.provenance(tmp_path)
    (tmp_path / "provenance.yaml").write_text("- a list\n")
    with pytest.raises(DatabaseError, match="not a mapping"):
        store.provenance(tmp_path)


def test_the_packaged_store_is_complete_and_small() -> None:
    tables = store.tables()
    found = {(table.accelerator, table.framework, table.op) for table in tables}
    for accelerator in ("h100_sxm", "h200_sxm", "b200_sxm", "gb200", "b300_sxm", "gb300"):
        assert (accelerator, "nccl", "nccl") in found
        for framework in ("trtllm", "sglang", "vllm"):
            needed = ("gemm", "moe", "context_attention", "generation_attention", "custom_allreduce", "gdn")
            assert {(accelerator, framework, op) for op in needed} <= found
    assert sum(table.bytes for table in tables) < 60e6
    totals = store.provenance()["totals"]
    assert totals == {
        "tables": len(tables),
        "rows": sum(table.rows for table in tables),
        "bytes": sum(table.bytes for table in tables),
    }


def test_every_packaged_table_reads_as_its_schema_says() -> None:
    for one in store.tables():
        if one.accelerator != "h200_sxm":
            continue
        table = store.load_table(one.accelerator, one.framework, one.op)
        assert table is not None
        assert len(table) == one.rows
        assert (table[list(SCHEMAS[one.op].positive)] > 0.0).all().all()
