from functools import lru_cache
from typing import Any

from afd_dse import Result, load_job, optimize
from afd_dse.results.confirm import CONFIRMED, confirmations_asked
from afd_dse.results.simulate import Options, simulate
from tests.results.examples import SMALL

# Prompts that vary much make chunked prefill wait longer than the formulas of means say.
VARIED: dict[str, Any] = SMALL | {
    "workload": {"input_tokens": {"mean": 2048, "cv": 1.0}, "output_tokens": 128},
    "slo": {"ttft_ms": 500, "tpot_ms": 20, "percentile": 99},
    "search": SMALL["search"] | {"modes": ["colocated", "pd"]},
}


@lru_cache(maxsize=4)
def found(confirm: int | None) -> Result:
    return optimize(load_job(VARIED), confirm=confirm)


def test_percentiles_are_confirmed_unless_told_otherwise() -> None:
    assert confirmations_asked(load_job(VARIED), None) == CONFIRMED
    assert confirmations_asked(load_job(VARIED), 3) == 3
    median = load_job(VARIED | {"slo": {"ttft_ms": 400}})
    assert confirmations_asked(median, None) == 0
    closed = VARIED["workload"] | {"arrival": {"kind": "closed_loop", "concurrency": 8}}
    assert confirmations_asked(load_job(VARIED | {"workload": closed}), None) == 0
    assert "confirmation" not in found(0).document


def test_what_fails_in_simulation_is_demoted_with_the_reason() -> None:
    plain, confirmed = found(0), found(None)
    simulated = confirmed.document["confirmation"]["simulated"]
    failed = [entry for entry in simulated if not entry["met"]]
    assert failed
    assert simulated[0]["label"] == plain.best["label"]
    assert all("in simulation, the limit" in entry["reason"] for entry in failed)
    assert plain.best["requests_per_s"] not in [row["requests_per_s"] for row in confirmed.ranking]
    assert any("demoted by simulation" in warning for warning in confirmed.warnings)
    assert confirmed.best["tokens_per_s_per_gpu"] <= plain.best["tokens_per_s_per_gpu"]


def test_what_fails_comes_back_under_less_load() -> None:
    confirmed = found(None)
    simulated = confirmed.document["confirmation"]["simulated"]
    again = {
        (entry["mode"], entry["label"]): entry["requests_per_s"]
        for entry in confirmed.document["ranking"]
        + [m for m in confirmed.document["best_per_mode"].values() if m]
        if entry["feasible"]
    }
    first = next(entry for entry in simulated if not entry["met"])
    less = again.get((first["mode"], first["label"]))
    assert less is not None
    assert less < first["requests_per_s"]
    for mode in confirmed.document["modes"]:
        assert mode["status"] == "feasible"


def test_the_recommended_deployment_holds_in_a_simulation_of_its_own() -> None:
    confirmed = found(None)
    assert confirmed.document["confirmation"]["confirmed"]
    again = simulate(load_job(VARIED), confirmed.best, Options(requests=8000, seed=11))
    assert again["limits"][0]["simulated_ms"] < 1.3 * again["limits"][0]["limit_ms"]


def test_what_there_was_no_time_to_simulate_is_said_to_be_unconfirmed() -> None:
    confirmed = found(1)
    assert len(confirmed.document["confirmation"]["simulated"]) == 1
    assert not confirmed.document["confirmation"]["confirmed"]
    assert any("has not been simulated" in warning for warning in confirmed.warnings)
