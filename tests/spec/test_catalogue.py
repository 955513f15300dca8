"""The catalogue of accelerators: complete, plausible, and found under the names that people write."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from afd_dse.errors import DatabaseError, InputError
from afd_dse.resources import operator_db_root
from afd_dse.spec import catalogue
from afd_dse.spec.catalogue import accelerator_aliases, accelerator_names, load_accelerator

TIB = 2.0**40


def test_every_accelerator_that_the_project_promises_is_there() -> None:
    assert set(accelerator_names()) >= {
        "h100_sxm", "h200_sxm", "b200_sxm", "gb200", "b300_sxm", "gb300",
        "h20", "h800", "a100_sxm", "a800", "l20", "l40s", "ascend_910b", "ascend_910c",
    }  # fmt: skip


@pytest.mark.parametrize("name", accelerator_names())
def test_the_figures_are_those_of_an_accelerator(name: str) -> None:
    accelerator = load_accelerator(name)
    assert accelerator.name == name
    assert 40e9 < accelerator.hbm_bytes < 300e9
    assert 0.8e12 < accelerator.hbm_bytes_per_s <= 8e12
    assert set(accelerator.peak_flops) <= {"bfloat16", "fp8", "fp4", "int8"}
    assert 1e14 < accelerator.peak_flops["bfloat16"] <= 2.5e15
    assert accelerator.scale_out_bytes_per_s <= accelerator.scale_up_bytes_per_s <= 900e9
    assert accelerator.scale_up_gpus % accelerator.node_gpus == 0
    assert 500 < accelerator.power_w < 3000
    assert 0.2 < accelerator.usd_per_gpu_hour < 5
    assert len(accelerator.source) > 40


@pytest.mark.parametrize("name", accelerator_names())
def test_halving_the_operands_doubles_the_peak(name: str) -> None:
    peaks = load_accelerator(name).peak_flops
    if "fp8" in peaks:
        assert peaks["fp8"] == pytest.approx(2 * peaks["bfloat16"], rel=0.02)
    if "fp4" in peaks:
        assert peaks["fp4"] >= 2 * peaks["fp8"]


@pytest.mark.parametrize("name", accelerator_names())
def test_tables_are_its_own_or_borrowed_from_one_that_has_them(name: str) -> None:
    accelerator = load_accelerator(name)
    lender = accelerator.tables or load_accelerator(accelerator.efficiency_from or "").tables
    assert lender is not None
    assert (operator_db_root() / "tables" / lender).is_dir()


def test_published_figures_hold() -> None:
    # Data sheets: H100 SXM 989 TFLOPS BF16 and 3.35 TB/s, H200 141 GB, B200 HGX 9 PFLOPS FP4; H20 as in field notes.
    assert load_accelerator("h100_sxm").peak_flops["bfloat16"] == pytest.approx(989e12, rel=1e-3)
    assert load_accelerator("h100_sxm").hbm_bytes_per_s == 3.35e12
    assert load_accelerator("h200_sxm").hbm_bytes / 141e9 == pytest.approx(1, abs=0.07)
    assert load_accelerator("b200_sxm").peak_flops["fp4"] == 9e15
    h20, h800, h100 = (load_accelerator(name) for name in ("h20", "h800", "h100_sxm"))
    assert (h20.peak_flops["bfloat16"], h20.peak_flops["fp8"]) == (148e12, 296e12)
    assert (h20.hbm_bytes_per_s, h20.scale_up_bytes_per_s) == (4e12, 450e9)
    assert h800.scale_up_bytes_per_s == 200e9
    assert h800.peak_flops == h100.peak_flops
    assert load_accelerator("gb200").scale_up_gpus == 72
    assert (load_accelerator("b200_sxm").power_w, load_accelerator("gb200").usd_per_gpu_hour) == (2170, 2.75)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("H100", "h100_sxm"),
        ("h100-SXM", "h100_sxm"),
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("H100-SXM5-80GB", "h100_sxm"),
        ("b200", "b200_sxm"),
        ("NVIDIA-B200", "b200_sxm"),
        ("gb200_sxm", "gb200"),
        ("GB200 NVL72", "gb200"),
        ("A100", "a100_sxm"),
        ("L40S", "l40s"),
    ],
)
def test_names_are_found_in_any_spelling(written: str, meant: str) -> None:
    assert load_accelerator(written).name == meant


def test_every_alias_leads_to_its_accelerator() -> None:
    for name, aliases in accelerator_aliases().items():
        assert {load_accelerator(alias).name for alias in (name, *aliases)} == {name}


@pytest.mark.parametrize(
    ("written", "near"),
    [("h100_pcie", "h100_sxm"), ("b20_sxm", "b200_sxm"), ("l40", "l40s"), ("h20 0", None)],
)
def test_an_unknown_accelerator_is_an_error_with_the_closest_names(written: str, near: str | None) -> None:
    if near is None:
        assert load_accelerator(written).name == "h200_sxm"  # blanks do not matter: this is an H200
        return
    with pytest.raises(InputError) as caught:
        load_accelerator(written, "cluster.pools[3].accelerator")
    (problem,) = caught.value.problems
    assert problem.field == "cluster.pools[3].accelerator"
    assert problem.value == written
    assert near in problem.remedy.split("?")[0]
    assert all(name in problem.remedy for name in accelerator_names())


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A database of its own, whose catalogue a test may write."""
    monkeypatch.setattr(catalogue, "operator_db_root", lambda: tmp_path)
    catalogue._catalogue.cache_clear()
    catalogue._spellings.cache_clear()
    (tmp_path / "catalogue").mkdir()
    yield tmp_path / "catalogue" / "accelerators.yaml"
    catalogue._catalogue.cache_clear()
    catalogue._spellings.cache_clear()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("    tables: h100_sxm\n", ""), "needs tables"),
        (("efficiency_from: h100_sxm", "efficiency_from: h101"), "needs tables"),
        (("    power_w: 1730\n", ""), "unusable catalogue"),
        (("power_w: 1730", "watts: 1730"), "unusable catalogue"),
        (("accelerators:", "accelerators: ["), "unusable catalogue"),
        (("accelerators:", "things:"), "unusable catalogue"),
        (("aliases: [h200,", "aliases: [h100,"), "names both"),
    ],
)
def test_a_damaged_catalogue_is_a_database_error(
    damaged: Path, change: tuple[str, str], message: str
) -> None:
    text = (operator_db_root() / "catalogue" / "accelerators.yaml").read_text(encoding="utf-8")
    damaged.write_text(text, encoding="utf-8")
    assert load_accelerator("l40s").name == "l40s"
    catalogue._catalogue.cache_clear()
    catalogue._spellings.cache_clear()
    damaged.write_text(text.replace(*change), encoding="utf-8")
    with pytest.raises(DatabaseError, match=message):
        load_accelerator("h200")


def test_a_missing_catalogue_is_a_database_error(damaged: Path) -> None:
    with pytest.raises(DatabaseError, match=r"accelerators\.yaml"):
        load_accelerator("h200")
