"""What the coverage says of models whose measurements are known."""

import pandas as pd
import pytest

from afd_dse.architecture.model import DenseFfn, Gqa, LayerKind, ModelArchitecture, MoeFfn, Quantization
from afd_dse.operators.coverage import FAMILIES, NOT_NEEDED, coverage
from afd_dse.operators.store import load_table
from afd_dse.spec.catalogue import load_accelerator


def model(name: str, ffn: DenseFfn | MoeFfn, quantization: Quantization | None = None) -> ModelArchitecture:
    attention = Gqa(heads=64, kv_heads=8, head_dim=128)
    kinds = (LayerKind(attention, ffn, 2),)
    return ModelArchitecture(name, "test", 4096, 1000, kinds, False, 0, quantization or Quantization())


DENSE = model("dense", DenseFfn(12288))
MEASURED_MOE = model("measured experts", MoeFfn(128, 8, 1536))
FOREIGN_MOE = model("foreign experts", MoeFfn(97, 5, 1500))
NVFP4 = model("four bits", DenseFfn(12288), Quantization(gemm="nvfp4"))


@pytest.fixture(scope="module")
def h200() -> pd.DataFrame:
    models = [DENSE, MEASURED_MOE, FOREIGN_MOE, NVFP4]
    return coverage(models, [load_accelerator("h200_sxm")], ["trtllm"]).set_index("model")


def test_a_row_names_model_accelerator_and_framework_and_every_family(h200: pd.DataFrame) -> None:
    assert list(h200.columns) == ["accelerator", "framework", *FAMILIES]
    assert set(h200["accelerator"]) == {"h200_sxm"}
    assert set(h200["framework"]) == {"trtllm"}


def test_a_family_that_the_model_lacks_is_not_needed(h200: pd.DataFrame) -> None:
    assert (
        h200.loc["dense", ["mla", "linear_attention", "moe", "expert_exchange"]].tolist() == [NOT_NEEDED] * 4
    )


def test_measured_shapes_are_measured_and_foreign_ones_borrowed(h200: pd.DataFrame) -> None:
    assert h200.loc["dense", ["gemm", "attention", "all_reduce"]].tolist() == ["measured"] * 3
    table = load_table("h200_sxm", "trtllm", "moe")
    assert table is not None
    assert (table["num_experts"] == 128).any()
    assert not (table["num_experts"] == 97).any()
    assert h200.loc["measured experts", "moe"] == "measured"
    assert h200.loc["foreign experts", "moe"] == "borrowed"


def test_a_data_type_that_the_accelerator_lacks_is_not_called_measured(h200: pd.DataFrame) -> None:
    assert h200.loc["four bits", "gemm"] != "measured"
    assert h200.loc["four bits", "attention"] == "measured"


def test_an_accelerator_without_tables_has_nothing_measured() -> None:
    row = coverage([DENSE], [load_accelerator("h20")], ["trtllm"]).iloc[0]
    assert "measured" not in row[list(FAMILIES)].tolist()
