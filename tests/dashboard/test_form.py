import pytest
import yaml

from afd_dse.dashboard.form import by_field, checked, fields, form_values, job_text, stored_text
from afd_dse.errors import Problem
from afd_dse.spec.job import Job
from tests.results.examples import SMALL, answer

DEFAULTS = {field.path: field.default for field in fields()}


def test_the_form_as_it_opens_is_a_valid_job() -> None:
    job, problems = checked(job_text(DEFAULTS))
    assert problems == ()
    assert job is not None
    assert job.search.space == "quick"


def test_every_field_of_the_form_is_a_field_of_a_job() -> None:
    known = str(Job.model_json_schema())
    for field in fields():
        assert f"'{field.path.rsplit('.', 1)[-1]}'" in known


def test_a_second_pool_and_several_modes_can_be_given() -> None:
    job, problems = checked(
        job_text(
            DEFAULTS
            | {
                "cluster.pools[1].accelerator": "h200_sxm",
                "cluster.pools[1].count": 8.0,
                "search.modes": "pd, PA PF | DA | DF",
            }
        )
    )
    assert problems == ()
    assert job is not None
    assert [pool.count for pool in job.cluster.pools] == [64, 8]
    assert [name for name, _ in job.search.partitions] == ["pd", "pd_afd"]


def test_what_can_be_launched_is_a_switch_that_is_read_back() -> None:
    plain, _ = checked(job_text(DEFAULTS))
    assert plain is not None
    assert not plain.search.launchable
    text = job_text(DEFAULTS | {"search.launchable": "true"})
    job, problems = checked(text)
    assert problems == ()
    assert job is not None
    assert job.search.launchable
    assert form_values(yaml.safe_load(text))["search.launchable"] == "true"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("slo.tpot_ms", -3, "greater than 0"),
        ("model", "Qwen/Qwen3-31B", "Qwen3-32B"),
        ("cluster.pools[0].accelerator", "b300x", "did you mean"),
        ("cluster.pools[0].count", 0, "at least 1"),
        ("cluster.pools[1].count", 4, ""),
        ("search.modes", "pdd", "unknown mode"),
        ("search.objective", "fewest_gpus", "demand.requests_per_s"),
    ],
)
def test_a_problem_stands_at_its_field_with_its_remedy(path: str, value: object, words: str) -> None:
    _, problems = checked(job_text(DEFAULTS | {path: value}))
    assert problems
    at, others = by_field(problems)
    home = "cluster.pools[1].accelerator" if path == "cluster.pools[1].count" else path
    assert words in at[home]
    assert others == []


def test_a_problem_of_what_has_no_field_is_listed_with_its_path() -> None:
    _, problems = checked("model: x\nframwork: vllm")
    assert any(text.startswith("framwork: ") for text in by_field(problems)[1])
    assert by_field([Problem("slo.percentiles", 1, "unknown key", "x")]) == (
        {},
        ["slo.percentiles: unknown key; x"],
    )


def test_text_that_is_no_yaml_is_a_problem_not_an_error() -> None:
    job, problems = checked("a: [")
    assert job is None
    assert problems


def test_the_job_of_a_result_can_be_edited_and_keeps_what_the_form_cannot_say() -> None:
    stored = answer().document["job"]
    text = stored_text(stored)
    job, problems = checked(text)
    assert problems == ()
    assert job is not None
    assert job.model_dump(mode="json") == stored
    values = form_values(yaml.safe_load(text))
    assert values["model"] == SMALL["model"]
    assert values["slo.tpot_ms"] == 20
    assert checked(job_text(form_values(stored), text)) == (job, ())
    changed, _ = checked(job_text(form_values(stored) | {"slo.tpot_ms": 21}, text))
    assert changed is not None
    expected = {**stored, "slo": {**stored["slo"], "tpot_ms": 21.0}}
    assert changed.model_dump(mode="json") == expected


def test_what_the_form_has_no_field_for_survives_a_change_of_a_field() -> None:
    text = """
model: deepseek-ai/DeepSeek-V3
speculative: {draft_tokens: 1, accepted_tokens_per_step: 1.7}
cluster:
  pools:
    - {name: a, accelerator: {base: b200_sxm, hbm_gb_s: 9000}, count: 8}
    - {name: b, accelerator: h200_sxm, count: 8}
workload: {input_tokens: {mean: 4096, cv: 0.5}, output_tokens: 512}
"""
    values = form_values(yaml.safe_load(text))
    assert values["workload.input_tokens"] is None
    changed = yaml.safe_load(job_text(values | {"workload.output_tokens": 256}, text))
    assert changed == yaml.safe_load(text.replace("512", "256"))
    without = {path: None for path in values if path.startswith("cluster.pools[1]")}
    assert len(yaml.safe_load(job_text(values | without, text))["cluster"]["pools"]) == 1
