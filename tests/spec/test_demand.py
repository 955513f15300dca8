from pathlib import Path
from typing import Any

import pytest
import yaml

from afd_dse.errors import InputError
from afd_dse.spec.demand import load_demand

ROOT = Path(__file__).resolve().parents[2]
SMALL: dict[str, Any] = {
    "model": "Qwen/Qwen3-30B-A3B-FP8",
    "hardware": [{"name": "h200", "accelerator": "h200_sxm", "count": 4, "usd_per_gpu_hour": 3.0}],
    "classes": [
        {
            "name": "chat",
            "workload": {"input_tokens": 1024, "output_tokens": 256},
            "slo": {"ttft_ms": 1000, "tpot_ms": 20},
        }
    ],
    "demand": {"requests_per_s": 20.0},
    "horizon": {"hours": 4},
}


def written(path: Path, document: Any) -> Path:
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples" / "demand").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_example_is_valid(path: Path) -> None:
    file = load_demand(path)
    for entry in file.classes:
        for kind in file.hardware:
            job = file.job(entry, kind, 8)
            assert job.search.objective == "usd_per_mtok"
            assert job.cluster.pools[0].count == 8
            assert job.workload == entry.workload


@pytest.mark.parametrize(
    ("path", "value", "field", "words"),
    [
        (("demand",), {}, "demand.requests_per_s", "this is needed"),
        (("demand", "daily"), [1.0] * 23, "demand.daily", "give 24"),
        (("demand", "weekly"), [0.0] * 7, "demand.weekly", "all factors are zero"),
        (("horizon", "period_hours"), 3, "horizon.period_hours", "choose a period"),
        (("hardware", 0, "start_hours"), 5, "hardware[0].start_hours", "longer than a period"),
        (("hardware", 0, "acelerator"), "x", "hardware[0].acelerator", "unknown key"),
        (("classes", 0, "workload", "output_tokens"), 0, "classes[0].workload.output_tokens", ""),
        (("rules",), {"headroom": 1.0}, "rules.headroom", ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_broken_demand_names_field_and_remedy(
    tmp_path: Path, path: tuple[Any, ...], value: Any, field: str, words: str
) -> None:
    document = yaml.safe_load(yaml.safe_dump(SMALL))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InputError) as error:
        load_demand(written(tmp_path / "demand.yaml", document))
    problems = {problem.field: problem for problem in error.value.problems}
    assert field in problems
    assert words in str(problems[field])


def test_names_must_differ(tmp_path: Path) -> None:
    twice = SMALL | {"classes": SMALL["classes"] * 2}
    with pytest.raises(InputError, match="same name"):
        load_demand(written(tmp_path / "demand.yaml", twice))
