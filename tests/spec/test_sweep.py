import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse import load_job
from afd_dse.errors import InputError
from afd_dse.spec.sweep import MOST_POINTS, load_sweep

ROOT = Path(__file__).resolve().parents[2]
BASE: dict[str, Any] = {
    "model": "Qwen/Qwen3-30B-A3B-FP8",
    "cluster": {"pools": [{"name": "main", "accelerator": "h200_sxm", "count": 8}]},
    "workload": {"input_tokens": 1024, "output_tokens": 256},
    "slo": {"ttft_ms": 1000},
}
SWEEP: dict[str, Any] = {
    "base": BASE,
    "axes": {
        "cluster.pools[0].count": [4, 8],
        "workload": {
            "chat": {"input_tokens": 512, "output_tokens": 512},
            "long": {"input_tokens": 8192, "output_tokens": 256},
        },
        "slo.tpot_ms": [10, 30.5],
    },
}


def changed(**parts: Any) -> dict[str, Any]:
    return copy.deepcopy(SWEEP) | parts


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples" / "sweeps").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_example_is_valid(path: Path) -> None:
    assert all(point.job is not None for point in load_sweep(path).points)


def test_every_combination_of_values_is_a_job_in_the_order_of_the_file() -> None:
    points = load_sweep(SWEEP).points
    assert [point.name for point in points] == [
        " · ".join(names) for names in itertools.product(("4", "8"), ("chat", "long"), ("10", "30.5"))
    ]
    last = points[-1].job
    assert last is not None
    assert last.cluster.pools[0].count == 8
    assert last.workload.isl == 8192
    assert (last.slo.ttft_ms, last.slo.tpot_ms) == (1000, 30.5)
    assert points[-1].labels == {"cluster.pools[0].count": "8", "workload": "long", "slo.tpot_ms": "30.5"}


@settings(max_examples=20)
@given(st.permutations(["slo.tpot_ms", "slo", "slo.percentile"]))
def test_a_section_is_replaced_before_its_fields_are_in_whichever_order(order: list[str]) -> None:
    values = {"slo": {"open": {"ttft_ms": 50}}, "slo.tpot_ms": [7], "slo.percentile": [90]}
    (point,) = load_sweep({"base": BASE, "axes": {path: values[path] for path in order}}).points
    assert point.job is not None
    slo = point.job.slo
    assert (slo.ttft_ms, slo.tpot_ms, slo.percentile) == (50, 7, 90)


def test_what_matches_all_of_a_rule_is_left_out() -> None:
    rule = {"cluster.pools[0].count": 4, "slo.tpot_ms": [10, 30.5]}
    left = load_sweep(changed(exclude=[rule, {"workload": "long"}])).points
    assert [point.name for point in left] == ["8 · chat · 10", "8 · chat · 30.5"]


def test_jobs_besides_the_axes_change_what_they_name() -> None:
    extra = {"name": "today", "set": {"workload.output_tokens": 99, "slo.tpot_ms": 10}}
    point = load_sweep(changed(jobs=[extra])).points[-1]
    assert point.name == "today"
    assert point.labels == {"slo.tpot_ms": "10"}
    assert point.job is not None
    assert (point.job.workload.isl, point.job.workload.osl) == (1024, 99)


def test_a_base_in_a_file_keeps_paths_relative_to_its_own_folder(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "space.yaml").write_text((ROOT / "search_spaces" / "quick.yaml").read_text())
    (inner / "job.yaml").write_text(yaml.safe_dump(BASE | {"search": {"space": "space.yaml"}}))
    (tmp_path / "sweep.yaml").write_text(
        yaml.safe_dump({"base": "inner/job.yaml", "axes": {"slo.tpot_ms": [10]}})
    )
    job = load_sweep(tmp_path / "sweep.yaml").points[0].job
    assert job is not None
    assert job.search.space_path == inner / "space.yaml"
    expected = load_job(inner / "job.yaml").model_dump()
    assert job.model_dump() == expected | {"slo": expected["slo"] | {"tpot_ms": 10}}


def test_a_job_that_is_not_valid_is_a_point_with_its_problems() -> None:
    points = load_sweep({"base": BASE, "axes": {"slo.tpot_ms": [-1, 10]}}).points
    assert points[0].job is None
    assert [problem.field for problem in points[0].problems] == ["slo.tpot_ms"]
    assert points[1].job is not None


@pytest.mark.parametrize(
    ("sweep", "field", "words"),
    [
        (changed(bse=1), "bse", "did you mean base"),
        ({"axes": {}}, "base", "this is needed"),
        ({"base": BASE}, "axes", "nothing to sweep"),
        (changed(base="nowhere.yaml"), "base: .*nowhere.yaml", "does not exist"),
        (changed(base=5), "base", "text is needed"),
        (changed(axes={"slo.tpot_ms": 5}), "axes.slo.tpot_ms", "write a list"),
        (changed(axes={"slo.tpot_ms": []}), "axes.slo.tpot_ms", "values are needed"),
        (changed(axes={"slo.tpot_ms": [5, 5]}), r"axes.slo.tpot_ms\[1\]", "stands twice"),
        (changed(axes={"slo": [{"tpot_ms": 5}]}), r"axes.slo\[0\]", "needs a name"),
        (changed(axes={"slo..tpot": [5]}), "axes.slo..tpot", "not the path of a field"),
        (changed(axes={"slo.ttft": [5, 6]}), "slo.ttft", "did you mean ttft_ms"),
        (changed(axes={"cluster.pools[1].count": [5, 6]}), r"cluster.pools\[1\].count", "the base has 1"),
        (changed(axes={"model.name": [5, 6]}), "model.name", "no fields where name should be"),
        (changed(axes={"slo.tpot_ms": [-5, -6]}), "slo.tpot_ms", "greater than 0"),
        (changed(axes={"model": ["No/Such-Model"]}), "model", "is not in the catalogue"),
        (changed(exclude=[{"slo": "x"}]), r"exclude\[0\].slo", "no such axis"),
        (changed(exclude=[{"workload": "chit"}]), r"exclude\[0\].workload", "did you mean chat"),
        (changed(exclude=[{"workload": ["chat", "long"]}]), "exclude", "every combination is left out"),
        (changed(jobs=[{"name": "a"}, {"name": "a"}]), r"jobs\[1\].name", "has the same name"),
        (changed(processes_per_study=2), "processes_per_study", "search.storage"),
        (
            changed(axes={"slo.tpot_ms": list(range(1, 500)), "slo.ttft_ms": list(range(1, 500))}),
            "axes",
            f"at most {MOST_POINTS:,}",
        ),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_a_broken_sweep_names_field_and_remedy(sweep: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InputError, match=rf"(?m)^{field}.*{words}"):
        load_sweep(sweep)


def test_of_many_problems_the_first_are_listed() -> None:
    with pytest.raises(InputError) as caught:
        load_sweep({"base": BASE, "axes": {"model": [f"No/Such-{i}" for i in range(30)]}})
    assert len(caught.value.problems) == 21
    assert "10 more problems" in str(caught.value)
