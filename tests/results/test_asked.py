from typing import Any, get_args

import pytest

from afd_dse.results.asked import workload_text
from afd_dse.spec.workload import Arrival, Workload

KINDS: dict[str, dict[str, Any]] = {
    "poisson": {},
    "gamma": {"cv": 2.0},
    "mmpp": {"peak_ratio": 5.0, "peak_share": 0.1, "peak_s": 10.0},
    "closed_loop": {"concurrency": 128},
    "trace": {"file": "trace.csv"},
}
WORDS = {
    "poisson": "Poisson arrivals",
    "gamma": "gaps between arrivals varied by 200 %",
    "mmpp": "arrivals 5 × as often in 10 % of the time, for 10 s each",
    "closed_loop": "closed loop of 128 requests",
    "trace": "arrivals of a trace",
}


def test_every_kind_of_arrival_is_known_here() -> None:
    assert set(KINDS) == set(get_args(Arrival.model_fields["kind"].annotation))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "trace"])
def test_arrivals_in_words(kind: str) -> None:
    arrival = {"kind": kind} | KINDS[kind]
    workload = Workload.model_validate({"input_tokens": 1000, "output_tokens": 200, "arrival": arrival})
    assert workload_text(workload.model_dump(mode="json"), None) == f"1,000 tokens in, 200 out; {WORDS[kind]}"


def test_arrivals_of_a_trace_in_words() -> None:
    workload = Workload.model_validate({"input_tokens": 1000, "output_tokens": 200}).model_dump(mode="json")
    workload["arrival"] = {"kind": "trace", "file": "trace.csv"}
    assert workload_text(workload, None) == f"1,000 tokens in, 200 out; {WORDS['trace']}"
