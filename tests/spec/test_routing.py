"""How tokens fall on experts, as a job says it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from afd_dse.cost.from_job import scenario_from_job
from afd_dse.errors import InputError
from afd_dse.spec.load import load_job
from afd_dse.spec.routing import DEFAULT_PERSISTENCE, read_histogram
from tests.strategies import build


def written(folder: Path, counts: list[Any], header: str = "tokens") -> Path:
    path = folder / "experts.csv"
    path.write_text("\n".join([header, *(str(count) for count in counts)]) + "\n", encoding="utf-8")
    return path


def with_routing(value: object, model: str = "deepseek-ai/DeepSeek-V3") -> Any:
    return build(model, workload={"expert_distribution": value})


def problem(value: object, model: str = "deepseek-ai/DeepSeek-V3") -> str:
    with pytest.raises(InputError) as caught:
        with_routing(value, model)
    return str(caught.value)


def test_a_power_law_gives_every_expert_its_share() -> None:
    work = with_routing({"kind": "power_law", "exponent": 1.0}).workload
    shares = np.array(work.expert_popularity)
    assert len(shares) == 256
    assert shares.sum() == pytest.approx(1.0)
    assert shares[0] / shares[9] == pytest.approx(10.0)
    assert (work.expert_distribution, work.expert_persistence) == ("uniform", DEFAULT_PERSISTENCE)


def test_a_histogram_is_read_relative_to_the_job(tmp_path: Path) -> None:
    written(tmp_path, list(range(1, 257)))
    job = load_job(
        {
            "model": "DeepSeek-V3",
            "cluster": {"pools": [{"name": "main", "accelerator": "b200_sxm", "count": 8}]},
            "workload": {
                "input_tokens": 1024,
                "output_tokens": 256,
                "expert_distribution": {"histogram": "experts.csv", "persistence": 0.9},
            },
        },
        folder=tmp_path,
    )
    work = scenario_from_job(job).workload
    assert work.expert_popularity[255] / work.expert_popularity[0] == pytest.approx(256)
    assert work.expert_persistence == 0.9


def test_names_of_measured_distributions_stay_what_they_were() -> None:
    for name in ("uniform", "balanced", "power_law_1.01", "power_law_1.2"):
        work = with_routing(name).workload
        assert (work.expert_distribution, work.expert_popularity) == (name, ())


def test_a_histogram_must_fit_the_model(tmp_path: Path) -> None:
    text = problem({"histogram": str(written(tmp_path, [1, 2, 3]))})
    assert "workload.expert_distribution.histogram" in text
    assert "3 experts" in text
    assert "256" in text


@pytest.mark.parametrize(
    ("counts", "header", "expected"),
    [
        ([1, -2], "tokens", "expert 2: tokens is '-2'"),
        ([1, "many"], "tokens", "expert 2: tokens is 'many'"),
        ([0, 0], "tokens", "no expert has any tokens"),
        ([], "tokens", "no expert has any tokens"),
        ([1], "load", "no column tokens among load"),
    ],
)
def test_a_histogram_that_is_not_usable_says_where(
    tmp_path: Path, counts: list[Any], header: str, expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        read_histogram(written(tmp_path, counts, header))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"kind": "power_law"}, "exponent"),
        ({"kind": "power_law", "exponent": -0.1}, "at least 0"),
        ({"kind": "zipf", "exponent": 1.0}, "did you mean|use one of power_law"),
        ({"kind": "power_law", "exponent": 1.0, "persistence": 1.5}, "persistence"),
        ({"histogram": "no/such.csv"}, "does not exist"),
        ("power_law", "unknown value"),
    ],
)
def test_what_cannot_be_meant_is_said(value: object, expected: str) -> None:
    text = problem(value)
    assert any(part in text for part in expected.split("|")), text


def test_a_dense_model_has_no_experts_to_be_popular() -> None:
    text = problem({"kind": "power_law", "exponent": 1.0}, "Qwen/Qwen3-32B-FP8")
    assert "has no experts" in text
