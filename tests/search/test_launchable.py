"""Searches that hold only what a release of the framework runs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from afd_dse import load_job, optimize
from afd_dse.cost.launching import runs
from afd_dse.cost.scenario import Scenario
from afd_dse.errors import InputError
from afd_dse.search.layouts import enumerate_layouts
from afd_dse.search.run import search
from afd_dse.search.space import load_space, without_unreleased
from afd_dse.spec.cells import PARTITIONS, Partition, Phase, parse_partition
from tests.strategies import build

PD = parse_partition("PA PF | DA DF")
POOLS = [{"name": "main", "accelerator": "h200", "count": 8}]
JOB: dict[str, Any] = {
    "model": "Qwen/Qwen3-30B-A3B-FP8",
    "framework": "vllm",
    "cluster": {"pools": POOLS},
    "workload": {"input_tokens": 1024, "output_tokens": 256},
    "slo": {"ttft_ms": 1000, "tpot_ms": 20},
}


def case(framework: str = "vllm") -> Scenario:
    return build(JOB["model"], POOLS, framework=framework)


@pytest.mark.parametrize("framework", ["trtllm", "sglang", "vllm"])
@pytest.mark.parametrize("partition", [PARTITIONS[0], PD], ids=lambda p: p.text)
def test_layouts_are_those_that_a_release_runs(framework: str, partition: Partition) -> None:
    every, grid = case(framework), load_space("default").grid(partition, Phase.DECODE)
    whole = enumerate_layouts(every, partition, tuple(Phase), grid)
    found = enumerate_layouts(replace(every, only_launchable=True), partition, tuple(Phase), grid)
    kept = whole.take(np.flatnonzero(runs(every, partition, whole)))
    assert 0 < len(found) < len(whole)
    for name, column in kept.columns.items():
        assert np.array_equal(
            np.broadcast_to(column, len(kept)), np.broadcast_to(found.columns[name], len(found))
        )


@pytest.mark.parametrize("framework", ["trtllm", "sglang", "vllm"])
def test_the_answer_is_run_and_no_worse_than_the_best_that_a_whole_search_happens_to_keep(
    framework: str,
) -> None:
    job = JOB | {"framework": framework}
    whole = optimize(job).document
    found = optimize(job | {"search": {"launchable": True}}).document
    listed = [found["best"], *found["ranking"], *found["pareto"]]
    assert all(one["launchable"] is not None for one in listed)
    assert found["best"]["tokens_per_s_per_gpu"] <= whole["best"]["tokens_per_s_per_gpu"] * (1.0 + 1e-6)
    kept = whole["best_launchable"]
    if kept is not None:
        assert found["best"]["tokens_per_s_per_gpu"] >= kept["tokens_per_s_per_gpu"] * (1.0 - 1e-3)
    released = {"PA PF DA DF", "PA PF | DA DF"} | ({"PA PF | DA | DF"} if framework == "vllm" else set())
    assert {mode["partition"] for mode in found["modes"]} == released


@pytest.mark.parametrize("partition", [PARTITIONS[0], PD], ids=lambda p: p.text)
def test_a_sampled_search_keeps_what_is_run_alone(partition: Partition) -> None:
    scenario = replace(case(), only_launchable=True)
    outcome = search(
        scenario, load_space("default"), [("m", partition)], "throughput_per_gpu", method="optuna", trials=120
    )
    found = outcome.modes[0].found
    assert found is not None
    assert runs(scenario, partition, found.candidates).all()
    assert found.evaluation.feasible.any()


def test_a_named_mode_that_no_release_runs_is_refused() -> None:
    search_ = {"launchable": True, "modes": ["pd", "shared_experts"]}
    with pytest.raises(InputError, match=r"search\.modes: no release of vllm runs it.*shared_experts"):
        optimize(load_job(JOB | {"search": search_}))


def test_a_space_that_lists_nothing_else_is_refused() -> None:
    space = load_space("default")
    left = without_unreleased(space)
    assert "tile_shared" not in left.whole.policies
    only = space.model_copy(update={"whole": space.whole.model_copy(update={"policies": ["tile_shared"]})})
    with pytest.raises(InputError, match=r"search\.space\.whole\.policies"):
        without_unreleased(only)
