import copy
from collections.abc import Callable
from typing import Any

import pytest

from afd_dse import estimate
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.errors import InputError
from afd_dse.results.parse import candidates_of
from tests.results.examples import answer, job
from tests.strategies import build

Document = dict[str, Any]


@pytest.fixture
def deployment() -> Document:
    return copy.deepcopy(answer().best_per_mode["pd_afd"])


def put(*path: str | int, value: Any = ...) -> Callable[[Document], None]:
    """A change of one field; without a value the field is removed."""

    def change(document: Document) -> None:
        at: Any = document
        for step in path[:-1]:
            at = at[step]
        if value is ...:
            del at[path[-1]]
        else:
            at[path[-1]] = value

    return change


def without_load(document: Document) -> None:
    document.pop("batch_size", None)
    document.pop("requests_per_s", None)
    for group in document["groups"]:
        group["batch_size"] = None


def with_rate(document: Document, rate: float) -> None:
    without_load(document)
    document["requests_per_s"] = rate


BROKEN = {
    "cells unknown": (put("groups", 0, "cells", value=["PA", "XX"]), "groups[0].cells", "unknown cell"),
    "cells twice": (put("groups", 0, "cells", value=["PA", "PA"]), "groups[0].cells", "twice"),
    "cells missing": (put("groups", 0, "cells"), "groups[0].cells", "needed"),
    "cells not text": (put("groups", 0, "cells", value=[1]), "groups[0].cells", "unknown cell"),
    "no such pool": (put("groups", 0, "pool", value="mian"), "groups[0].pool", "did you mean main"),
    "other accelerator": (put("groups", 1, "accelerator", value="h20"), "groups[1].accelerator", "h200_sxm"),
    "gpus against degrees": (put("groups", 0, "gpus", value=64), "groups[0].gpus", "is 1"),
    "dp not whole": (put("groups", 1, "dp", value=1.5), "groups[1].dp", "whole number"),
    "dp a text": (put("groups", 1, "dp", value="2"), "groups[1].dp", "whole number"),
    "dp true": (put("groups", 1, "dp", value=True), "groups[1].dp", "whole number"),
    "dp zero": (put("groups", 1, "dp", value=0), "groups[1].dp", "at least 1"),
    "dp endless": (put("groups", 1, "dp", value=float("inf")), "groups[1].dp", "whole number"),
    "redundant negative": (
        put("groups", 2, "redundant_experts", value=-1),
        "groups[2].redundant_experts",
        "at least 0",
    ),
    "experts on attention": (put("groups", 1, "ep", value=4), "groups[1].ep", "without FFN"),
    "heads that do not divide": (put("groups", 1, "tp", value=3), "groups[1].tp", "cannot be cut"),
    "stages apart": (put("groups", 1, "pp", value=2), "groups[1].pp", "pipeline stages"),
    "more ranks than experts": (put("groups", 2, "ep", value=256), "groups[2].ep", "only 128 experts"),
    "uneven copies": (
        put("groups", 2, "redundant_experts", value=1),
        "groups[2].redundant_experts",
        "evenly",
    ),
    "replicas that disagree": (put("groups", 2, "replicas", value=3), "groups[2].replicas", "group DA"),
    "micro-batches that disagree": (
        put("groups", 2, "micro_batches", value=9),
        "groups[2].micro_batches",
        "group DA",
    ),
    "group missing": (put("groups", 2), "groups", "no group serves DF"),
    "cells in two groups": (
        put("groups", 0, "cells", value=["PA", "PF", "DF"]),
        "groups",
        "several groups serve DF",
    ),
    "no groups": (put("groups"), "groups", "a list of groups"),
    "groups empty": (put("groups", value=[]), "groups", "a list of groups"),
    "groups not a list": (put("groups", value={"a": 1}), "groups", "a list of groups"),
    "group not a mapping": (put("groups", 1, value="DA"), "groups[1]", "a mapping"),
    "unknown key": (put("chunk_token", value=1), "chunk_token", "did you mean chunk_tokens"),
    "unknown key of a group": (put("groups", 0, "tpp", value=1), "groups[0].tpp", "did you mean tp"),
    "no load": (without_load, "batch_size", "requests_per_s"),
    "load negative": (put("batch_size", value=-4), "batch_size", "above 0"),
    "load a text": (put("batch_size", value="64"), "batch_size", "above 0"),
    "loads that disagree": (put("groups", 1, "batch_size", value=1e4), "groups[1].batch_size", "keep one"),
    "rate out of reach": (lambda d: with_rate(d, 1e9), "requests_per_s", "at most"),
    "no chunk": (put("chunk_tokens"), "chunk_tokens", "this is needed"),
    "chunk zero": (put("chunk_tokens", value=0), "chunk_tokens", "above 0"),
    "policy unknown": (put("policy", value="fifo"), "policy", "use one of chunked, prioritized"),
    "policy without meaning": (put("policy", value="prioritized"), "policy", "do not share steps"),
    "tiles without shared groups": (
        put("policy", value="tile_shared"),
        "policy",
        "no group serves both phases",
    ),
    "share of SMs without tiles": (put("decode_share", value=0.5), "decode_share", "policy: tile_shared"),
    "expert policy unknown": (
        put("groups", 2, "expert_policy", value="histroy"),
        "groups[2].expert_policy",
        "did you mean history",
    ),
    "expert policy without experts": (
        put("groups", 1, "expert_policy", value="history"),
        "groups[1].expert_policy",
        "no meaning",
    ),
    "copies without slots": (
        put("groups", 2, "expert_policy", value="prefetch"),
        "groups[2].expert_policy",
        "redundant_experts",
    ),
    "mode unknown": (put("mode", value="pdd"), "mode", "unknown mode"),
    "mode against partition": (put("mode", value="pd"), "mode", "not the partition given"),
    "partition broken": (put("partition", value="PA PF | DA"), "partition", "exactly one group"),
    "partition a number": (put("partition", value=3), "partition", "text"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_deployment_is_refused_by_field_and_remedy(name: str, deployment: Document) -> None:
    change, field, message = BROKEN[name]
    change(deployment)
    with pytest.raises(InputError) as caught:
        candidates_of(deployment, scenario_from_job(job()))
    problems = [problem for problem in caught.value.problems if problem.field == field]
    assert problems, str(caught.value)
    assert message in str(problems[0])
    assert all(problem.remedy for problem in caught.value.problems)


@pytest.mark.parametrize("document", [None, "text", [1], 3])
def test_what_is_no_mapping_is_refused(document: Any) -> None:
    with pytest.raises(InputError, match="a mapping is needed"):
        candidates_of(document, scenario_from_job(job()))


def test_a_request_rate_is_solved_for_its_batch(deployment: Document) -> None:
    expected, rate = deployment["batch_size"], deployment["requests_per_s"]
    with_rate(deployment, rate)
    assert candidates_of(deployment, scenario_from_job(job())).number("batch_size")[0] == pytest.approx(
        expected, rel=1e-6
    )
    with_rate(deployment, 0.25 * rate)
    slower = estimate(job(), deployment)
    assert slower["requests_per_s"] == pytest.approx(0.25 * rate, rel=1e-9)
    assert slower["batch_size"] < 0.26 * expected


def test_a_few_lines_written_by_hand_are_a_deployment() -> None:
    by_hand = {
        "mode": "pd",
        "groups": [
            {"cells": "DA DF", "dp": 2, "ep": 2, "batch_size": 32},
            {"cells": ["pa", "pf"], "tp": 2, "ep": 2},
        ],
        "chunk_tokens": 4096,
    }
    document = estimate(job(), by_hand)
    assert document["label"] == "1xTEP2 + 1xDEP2"
    assert document["partition"] == "PA PF | DA DF"
    assert [group["pool"] for group in document["groups"]] == ["main", "main"]


def test_a_dense_ffn_is_cut_like_its_attention_unless_told_otherwise() -> None:
    case = build("Qwen/Qwen3-32B-FP8", ({"name": "main", "accelerator": "h200_sxm", "count": 8},))
    groups = [{"cells": ["PA", "PF", "DA", "DF"], "tp": 4}]
    found = candidates_of({"groups": groups, "batch_size": 8, "chunk_tokens": 2048}, case)
    assert found.integer("decode_moe_tp")[0] == 4
    with pytest.raises(InputError, match=r"groups\[0\]\.ep: .* no experts"):
        candidates_of(
            {"groups": [groups[0] | {"ep": 4, "moe_tp": 1}], "batch_size": 8, "chunk_tokens": 2048}, case
        )


def test_a_pool_must_be_named_where_there_are_several() -> None:
    pools = tuple({"name": n, "accelerator": "h200_sxm", "count": 8} for n in ("a", "b"))
    case = build("Qwen/Qwen3-32B-FP8", pools)
    groups = [{"cells": ["PA", "PF", "DA", "DF"], "tp": 4}]
    with pytest.raises(InputError, match=r"groups\[0\]\.pool: .* use one of a, b"):
        candidates_of({"groups": groups, "batch_size": 8, "chunk_tokens": 2048}, case)
