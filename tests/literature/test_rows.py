"""Reading rows and their inputs."""

from pathlib import Path

import pytest

from afd_dse.errors import InputError
from afd_dse.literature.rows import Inputs, Row, Unreadable, read_rows


def row(quantity: str, **inputs: object) -> Row:
    return Row("id", "any", quantity, Inputs(inputs), "1", "exact", "exact")


def test_an_input_is_found_under_any_of_its_names_and_remembered() -> None:
    inputs = Inputs({"top_k": 8, "other": 1})
    assert inputs.whole("topk", "top_k") == 8
    assert inputs.unused == ["other"]


def test_a_quantity_is_read_in_the_unit_of_its_name() -> None:
    units = {"hbm_tb_s": 1e12, "hbm_gb_s": 1e9}
    assert Inputs({"hbm_tb_s": 2}).scaled(units) == 2e12
    assert Inputs({"hbm_gb_s": 864}).scaled(units) == 864e9
    with pytest.raises(InputError, match="state one of hbm_tb_s, hbm_gb_s"):
        Inputs({}).scaled(units)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"), [("8x400Gb/s", 400e9), ("8 × 200 Gbps", 200e9), ("1x50GB/s", 50e9)]
)
def test_the_nics_of_a_node_are_read_as_people_write_them(text: str, bytes_per_s: float) -> None:
    assert Inputs({"nics": text}).nics("nics") == bytes_per_s


def test_numbers_that_the_inputs_leave_out_are_read_from_the_description() -> None:
    assert row("overhead for r=2,4, 8 and 16").listed("r", r"\br") == [2.0, 4.0, 8.0, 16.0]
    assert row("at batch 128, 256").listed("B", "batch") == [128.0, 256.0]
    assert row("at batch 128", B=[1, 2]).listed("B", "batch") == [1.0, 2.0]
    with pytest.raises(InputError, match=r"inputs\.B: is missing"):
        row("nothing").listed("B", "batch")


@pytest.mark.parametrize("value", [True, "three", "", None, float("inf"), [1]])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(InputError, match=r"inputs\.x"):
        Inputs({"x": value}).number("x")


def test_wrong_kinds_of_inputs_are_refused_by_name() -> None:
    inputs = Inputs({"half": 0.5, "zero": 0, "words": 3, "table": [1], "model": 7})
    for read in (
        lambda: inputs.whole("half"),
        lambda: inputs.positive("zero"),
        lambda: inputs.text("words"),
        lambda: inputs.mapping("table"),
        lambda: inputs.model(),
        lambda: inputs.part("x", 3),
    ):
        with pytest.raises(InputError, match=r"inputs\."):
            read()


def test_a_row_with_too_many_fields_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('id,evaluator,inputs,expected\na,x,{"b": 1, "c": 2},1\n,y,{},2\n')
    broken, good = read_rows(path)
    assert isinstance(broken, Unreadable)
    assert "put JSON in quotes" in broken.reason
    assert isinstance(good, Row)
    assert good.id == "line 3"
