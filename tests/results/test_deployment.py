import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.evaluation import CONSTRAINTS
from afd_dse.cost.scenario import Scenario
from afd_dse.results.deployment import deployment_of
from afd_dse.results.parse import candidates_of
from afd_dse.results.reasons import binding
from afd_dse.search.pool import Found
from afd_dse.spec.cells import PARTITIONS, Partition
from tests.strategies import SCENARIOS, build, layout, scenario


def found(case: Scenario, partition: Partition, seed: int = 0, **columns: Any) -> Found:
    candidates = layout(case, partition, np.random.default_rng(seed), **columns)
    return Found(candidates, evaluate(case, candidates))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    else:
        yield path, value


@settings(max_examples=60)
@given(name=st.sampled_from(SCENARIOS), partition=st.sampled_from(PARTITIONS), seed=st.integers(0, 10**6))
def test_a_deployment_read_from_json_gives_the_same_numbers(
    name: str, partition: Partition, seed: int
) -> None:
    case = scenario(name)
    first = found(case, partition, seed)
    document = deployment_of(case, first, 0, "any")
    text = json.dumps({key: value for key, value in document.items() if key != "mode"}, allow_nan=False)
    again = candidates_of(json.loads(text), case)
    second = deployment_of(case, Found(again, evaluate(case, again)), 0, "any")
    for (path, ours), (other, theirs) in zip(leaves(document), leaves(second), strict=True):
        assert path == other
        if isinstance(ours, float):
            assert theirs == pytest.approx(ours, rel=1e-9, abs=1e-9), path
        else:
            assert theirs == ours, path


def test_groups_add_up_to_the_gpus_and_memory_terms_to_their_total() -> None:
    case = scenario()
    for seed, partition in enumerate(PARTITIONS):
        document = deployment_of(case, found(case, partition, seed), 0, "any")
        assert sum(group["gpus_total"] for group in document["groups"]) == document["gpus"]
        for group in document["groups"]:
            memory = group["memory_gib"]
            terms = sum(value for name, value in memory.items() if name not in ("total", "budget"))
            assert terms == pytest.approx(memory["total"])


def test_shares_of_provenance_add_up_to_one() -> None:
    case = scenario()
    for seed, partition in enumerate(PARTITIONS):
        shares = deployment_of(case, found(case, partition, seed), 0, "any")["provenance"]
        assert set(shares) == {"measured", "interpolated", "borrowed", "speed_of_light"}
        assert sum(shares.values()) == pytest.approx(1.0)


def test_the_reason_names_the_most_violated_constraint_with_its_numbers() -> None:
    case = build(slo={"tpot_ms": 0.01})
    document = deployment_of(case, found(case, PARTITIONS[0], batch_size=1.0), 0, "colocated")
    assert not document["feasible"]
    assert document["binding"] is None
    assert document["reason"].startswith(f"TPOT {document['tpot_ms']:.1f} ms exceeds 0.01 ms by ")
    assert min(document["slack"], key=document["slack"].get) == "TPOT"
    assert document["slack"]["TPOT"] == pytest.approx(100 * (1 - document["tpot_ms"] / 0.01))


def test_a_full_memory_is_explained_by_group_and_term() -> None:
    case = scenario()
    document = deployment_of(
        case, found(case, PARTITIONS[0], batch_size=1e6, chunk_tokens=4e6), 0, "colocated"
    )
    if "memory" not in document["reason"]:
        pytest.fail(document["reason"])
    memory = document["groups"][0]["memory_gib"]
    assert "group PA PF DA DF" in document["reason"]
    assert f"{memory['kv_cache']:,.0f} GiB" in document["reason"]
    assert f"{memory['total'] - memory['budget']:,.0f} GiB over" in document["reason"]


def test_too_many_gpus_are_named_with_their_pool() -> None:
    case = build(pools=({"name": "tiny", "accelerator": "b200_sxm", "count": 8},))
    candidates = layout(case, PARTITIONS[0], np.random.default_rng(0), plain=True, batch_size=1.0)
    gpus = int(evaluate(case, candidates).metrics["gpus"][0]) // int(candidates.integer("decode_replicas")[0])
    many = candidates.replace(prefill_replicas=64, decode_replicas=64)
    document = deployment_of(case, Found(many, evaluate(case, many)), 0, "colocated")
    if document["slack"]["gpus"] == min(document["slack"].values()):
        assert document["reason"] == f"needs {64 * gpus} GPUs of pool tiny, which has 8"
    assert document["slack"]["gpus"] == pytest.approx(100 * (1 - 8 * gpus))
    assert document["cluster_copies"] == 0


def test_a_time_without_bound_is_null_and_said_so() -> None:
    case = build(slo={"ttft_ms": 1000, "percentile": 90}, isl=100_000, osl=2)
    partition = next(p for p in PARTITIONS if p.text == "PA PF | DA DF")
    document = deployment_of(case, found(case, partition, batch_size=512.0), 0, "pd")
    json.dumps(document, allow_nan=False)
    assert document["ttft_ms"] is None
    assert "no bound" in document["reason"] or "capacity" in document["reason"]


def test_only_constraints_that_the_job_has_are_reported() -> None:
    case = build()
    document = deployment_of(case, found(case, PARTITIONS[0]), 0, "colocated")
    assert set(document["slack"]) <= set(CONSTRAINTS) - {
        "TTFT",
        "TPOT",
        "request latency",
        "demand",
        "KV transfer",
    }


def test_the_cluster_binds_only_where_the_objective_could_use_more_of_it() -> None:
    slack = {"gpus": 0.0, "TPOT": 3.0, "memory": 20.0}
    assert binding(slack) == {"constraint": "TPOT", "slack_percent": 3.0}
    assert binding(slack, "total_throughput") == {"constraint": "gpus", "slack_percent": 0.0}
    assert binding({"gpus": 0.0}) is None
