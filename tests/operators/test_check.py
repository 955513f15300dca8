"""The check finds every kind of defect in a small store, and none in a sound one."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from afd_dse.operators.check import CheckReport, check_store
from afd_dse.operators.table_schema import SCHEMAS
from afd_dse.operators.table_work import speed_of_light
from afd_dse.spec.accelerator import Accelerator

H100 = Accelerator(
    name="h100_sxm",
    generation="hopper",
    tables="h100_sxm",
    peak_flops={"bfloat16": 1e15, "fp8": 2e15},
    hbm_bytes=8e10,
    hbm_bytes_per_s=1e12,
    scale_up_gpus=8,
    scale_up_bytes_per_s=4.5e11,
    scale_out_bytes_per_s=5e10,
    node_gpus=8,
    power_w=1000.0,
    usd_per_gpu_hour=1.0,
    source="test",
)
GEMM = "tables/h100_sxm/vllm/gemm.parquet"


def gemm() -> pd.DataFrame:
    """GEMMs at half the speed of light, all of them bound by the weights."""
    rows = [("bfloat16", n, 4096, "kernel", m, "1.0") for n in (4096, 8192) for m in (1, 2, 4)]
    table = pd.DataFrame(rows, columns=list(SCHEMAS["gemm"].columns)[:-1])
    bound = speed_of_light("gemm", table, H100)
    assert bound is not None
    return table.assign(latency_ms=2e3 * bound)


def write(root: Path, table: pd.DataFrame, name: str = GEMM) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    for index, column in enumerate(arrow.column_names):
        if column == "latency_ms" and arrow.schema.field(index).type == pa.float64():
            arrow = arrow.set_column(index, column, arrow.column(index).cast(pa.float32()))
        elif arrow.schema.field(index).type == pa.large_string():
            arrow = arrow.set_column(index, column, arrow.column(index).cast(pa.string()))
    pq.write_table(arrow.replace_schema_metadata(None), path, store_schema=False)


def seal(root: Path) -> None:
    """Write a provenance that lists what is there."""
    tables = {
        path.relative_to(root).as_posix(): {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in root.rglob("*.parquet")
    }
    (root / "provenance.yaml").write_text(yaml.safe_dump({"tables": tables}))


def checked(root: Path, table: pd.DataFrame, name: str = GEMM) -> CheckReport:
    write(root, table, name)
    seal(root)
    return check_store(root, {"h100_sxm": H100})


def test_a_sound_store_has_no_defect(tmp_path: Path) -> None:
    report = checked(tmp_path, gemm())
    assert report.ok
    assert report.defects == ()
    (table,) = report.tables
    assert (table.rows, table.faster_than_light, table.steps, table.falls) == (6, 0, 4, 0)
    assert report.faster_than_light.empty


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t.drop(columns="m"), "lacks m"),
        (lambda t: t.assign(power=1.0), "unknown columns power"),
        (lambda t: t.assign(m=t["m"].astype(float)), "m is double, not int64"),
        (lambda t: t.iloc[:0], "is empty"),
        (lambda t: pd.concat([t, t.iloc[:1]]), "1 rows repeat the key"),
        (lambda t: t.assign(latency_ms=t["latency_ms"].where(t.index > 0, 0.0)), "1 rows with a missing"),
        (
            lambda t: t.assign(latency_ms=t["latency_ms"].where(t.index > 1, float("inf"))),
            "2 rows with a missing",
        ),
        (lambda t: t.assign(gemm_dtype=t["gemm_dtype"].where(t.index > 0, None)), "1 rows with a missing"),
        (lambda t: t.assign(gemm_dtype="fp3"), "unknown data type"),
    ],
)
def test_a_defect_of_a_table_is_found_and_named(
    tmp_path: Path, damage: Callable[[pd.DataFrame], pd.DataFrame], message: str
) -> None:
    report = checked(tmp_path, damage(gemm()))
    assert not report.ok
    assert any(line.startswith("h100_sxm/vllm/gemm: ") and message in line for line in report.defects)


def test_a_row_faster_than_light_is_listed_and_counted_but_no_defect(tmp_path: Path) -> None:
    table = gemm()
    table.loc[3, "latency_ms"] /= 4.0
    report = checked(tmp_path, table)
    assert report.ok
    assert report.tables[0].faster_than_light == 1
    (row,) = report.faster_than_light.to_dict("records")
    assert row["op"] == "gemm"
    assert "n=8192" in row["shape"]
    assert row["efficiency"] == pytest.approx(2.0)


def test_latency_that_clearly_falls_along_an_axis_is_counted(tmp_path: Path) -> None:
    table = gemm()
    table.loc[1, "latency_ms"] *= 1.04  # point 2 then lies 4 % lower: measurement noise
    table.loc[4, "latency_ms"] *= 1.10
    assert checked(tmp_path, table).tables[0].falls == 1


def test_every_axis_of_a_table_is_followed_with_the_others_fixed(tmp_path: Path) -> None:
    rows = [
        ("bfloat16", "bfloat16", 128, 0, 8, 32, "kernel", batch, 1, step, "1.0", 10.0 * batch + step / 1000.0)
        for batch in (1, 2, 4)
        for step in (1000, 2000, 4000)
    ]
    table = pd.DataFrame(rows, columns=list(SCHEMAS["generation_attention"].columns))
    name = "tables/h100_sxm/vllm/generation_attention.parquet"
    sound = checked(tmp_path, table, name)
    assert (sound.tables[0].steps, sound.tables[0].falls) == (12, 0)
    table.loc[4, "latency_ms"] = 1.0  # batch 2, step 2000: below its left neighbour and below batch 1
    assert checked(tmp_path, table, name).tables[0].falls == 2


def test_files_are_held_against_the_provenance(tmp_path: Path) -> None:
    write(tmp_path, gemm())
    write(tmp_path, gemm(), GEMM.replace("vllm", "sglang"))
    seal(tmp_path)
    assert check_store(tmp_path, {"h100_sxm": H100}).ok
    write(tmp_path, gemm().iloc[:3])
    (tmp_path / GEMM.replace("vllm", "sglang")).unlink()
    write(tmp_path, gemm(), GEMM.replace("vllm", "trtllm"))
    assert check_store(tmp_path, {"h100_sxm": H100}).store_defects == (
        "tables/h100_sxm/sglang/gemm.parquet: listed in provenance.yaml, but not there",
        "tables/h100_sxm/vllm/gemm.parquet: differs from the hash in provenance.yaml",
        "tables/h100_sxm/trtllm/gemm.parquet: not listed in provenance.yaml",
    )


def test_a_store_without_provenance_has_that_defect(tmp_path: Path) -> None:
    write(tmp_path, gemm())
    assert "unreadable provenance" in check_store(tmp_path, {"h100_sxm": H100}).store_defects[0]


def test_unreadable_undeclared_and_misplaced_tables_are_found(tmp_path: Path) -> None:
    for name in ("tables/h100_sxm/vllm/gemm.parquet", "tables/h100_sxm/vllm/gemv.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"damaged")
    write(tmp_path, gemm(), "tables/h100_sxm/nccl/gemm.parquet")
    write(tmp_path, gemm(), "tables/h1/vllm/gemm.parquet")
    seal(tmp_path)
    lines = "\n".join(check_store(tmp_path, {"h100_sxm": H100}).defects)
    assert "h100_sxm/vllm/gemm: unreadable" in lines
    assert "h100_sxm/vllm/gemv: no schema declares this operator" in lines
    assert "h100_sxm/nccl/gemm: gemm does not belong under nccl" in lines
    assert "h1/vllm/gemm: the catalogue knows no such accelerator" in lines


def test_attention_over_an_fp8_cache_is_held_against_the_fp8_peak() -> None:
    row = ("bfloat16", "fp8", 128, 0, 128, 128, "kernel", 1, 65536, 0, "1.0", 1.0)
    fp8 = pd.DataFrame([row], columns=list(SCHEMAS["context_attention"].columns))
    wide = fp8.assign(kv_cache_dtype="bfloat16")
    slow, fast = (speed_of_light("context_attention", table, H100) for table in (wide, fp8))
    assert slow is not None
    assert fast is not None
    assert slow[0] == pytest.approx(2.0 * fast[0])


def test_communication_has_no_bound_on_one_gpu() -> None:
    assert speed_of_light("nccl", pd.DataFrame(columns=list(SCHEMAS["nccl"].columns)), H100) is None


@pytest.mark.slow
def test_the_packaged_store_passes() -> None:
    report = check_store()
    assert report.defects == ()
    # 0.24 % of the rows of aiconfigurator-core 0.12.0, nearly all of them experts under skewed routing.
    rows = sum(table.rows for table in report.tables if table.faster_than_light is not None)
    assert len(report.faster_than_light) < 0.01 * rows
