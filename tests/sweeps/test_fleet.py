"""Fleets from file to answer: against brute force over all shares, against the search, and what is kept."""

import itertools
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import afd_dse
from afd_dse.errors import InputError
from afd_dse.spec.fleet import load_fleet
from afd_dse.sweeps import fleet as fleets
from afd_dse.sweeps.fleet import FleetResult
from tests.spec.test_fleet import CHAT, DENSE, SMALL

GPUS = 6
POOLS = {"pools": [{"name": "main", "accelerator": "h100_sxm", "count": GPUS, "usd_per_gpu_hour": 2.0}]}


@lru_cache(maxsize=16)
def most(model: int, gpus: int) -> float:
    """Requests/s that a search of its own finds for one model on so many GPUs."""
    file = load_fleet(SMALL)
    found = afd_dse.optimize(file.job(file.models[model], {"main": gpus}), confirm=0).best
    return 0.0 if found is None else float(found["requests_per_s"])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleet")


def answer(kept: Path, **change: Any) -> FleetResult:
    return afd_dse.fleet(SMALL | {"cluster": POOLS} | change, out=kept)


def rates(result: FleetResult) -> list[float]:
    return [
        0.0 if model["deployment"] is None else model["deployment"]["requests_per_s"]
        for model in result.document["models"]
    ]


def as_good(value: float, searched: float) -> bool:
    """Whether a rate is that of a search, or the little more that lies beside the loads which a search tries."""
    return searched * (1.0 - 1e-4) <= value <= searched * 1.01


def asked(chat: float, dense: float) -> list[dict[str, Any]]:
    return [CHAT | {"demand": {"requests_per_s": chat}}, DENSE | {"demand": {"requests_per_s": dense}}]


def shares() -> list[tuple[int, int]]:
    return [(a, b) for a, b in itertools.product(range(1, GPUS), repeat=2) if a + b <= GPUS]


@pytest.mark.parametrize(("chat", "dense"), [(5.0, 0.5), (20.0, 1.0), (70.0, 3.0), (30.0, 6.0), (90.0, 20.0)])
def test_the_fewest_gpus_are_those_of_the_best_of_all_shares(kept: Path, chat: float, dense: float) -> None:
    enough = [sum(s) for s in shares() if most(0, s[0]) >= chat and most(1, s[1]) >= dense]
    found = answer(kept, models=asked(chat, dense))
    assert found.feasible == bool(enough)
    if enough:
        assert found.document["gpus"] == min(enough)
        assert rates(found)[0] >= chat
        assert rates(found)[1] >= dense
        assert all(model["load"] <= 1.0 for model in found.document["models"])


def test_growth_and_weighted_throughput_are_those_of_the_best_of_all_shares(kept: Path) -> None:
    grown = answer(kept, objective="growth")
    factors = [min(most(0, a) / 20.0, most(1, b) / 1.0) for a, b in shares()]
    assert as_good(grown.document["growth"], max(factors))
    loads = [model["load"] for model in grown.document["models"]]
    assert max(loads) == pytest.approx(1.0 / grown.document["growth"], rel=1e-9)
    models = [CHAT | {"demand": None}, DENSE | {"demand": None, "weight": 7.0}]
    weighed = answer(kept, objective="weighted_throughput", models=models)
    values = [
        256.0 * (most(0, a) if a else 0.0) + 7.0 * 200.0 * (most(1, b) if b else 0.0)
        for a, b in itertools.product(range(GPUS + 1), repeat=2)
        if a + b <= GPUS
    ]
    assert as_good(weighed.document["weighted_tokens_per_s"], max(values))
    assert weighed.document["growth"] is None


def test_one_model_gets_what_a_search_of_its_own_finds(kept: Path) -> None:
    found = answer(kept, models=[CHAT], objective="growth")
    assert as_good(rates(found)[0], most(0, GPUS))


def test_the_answer_says_what_is_exact_and_gpus_add_up(kept: Path) -> None:
    document = answer(kept).document
    assert document["exact"]
    assert "proved optimal" in document["explanation"]
    assert any("counted, not placed" in text for text in document["warnings"])
    pool = document["gpus_by_pool"]["main"]
    assert pool["used"] == sum(model["gpus"] for model in document["models"]) == document["gpus"]
    assert pool["used"] + pool["free"] == pool["count"] == GPUS
    assert document["usd_per_hour"] == pytest.approx(2.0 * document["gpus"])


def test_deployments_and_results_can_be_fed_back(kept: Path) -> None:
    found = answer(kept)
    for model in found.document["models"]:
        deployment = model["deployment"]
        again = afd_dse.estimate(model["job"], deployment)
        own = found.results[model["name"]]
        assert again["feasible"]
        for name in ("requests_per_s", "ttft_ms", "tpot_ms", "tokens_per_s_per_gpu"):
            assert again[name] == pytest.approx(deployment[name], rel=1e-9)
            assert own.best is not None
            assert own.best[name] == pytest.approx(deployment[name], rel=1e-5)
        assert own.document["job"]["cluster"]["pools"][0]["count"] == model["gpus"]
        assert "staircase" in own.document["explanation"]


def test_what_was_searched_is_not_searched_again(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = answer(kept)
    monkeypatch.setattr(fleets, "staircase", lambda *a, **k: pytest.fail("searched again"))
    after = answer(kept)
    assert after.document["reused"] == 2
    assert after.document["models"] == before.document["models"]
    with pytest.raises(pytest.fail.Exception):
        answer(kept, models=[CHAT | {"slo": {"ttft_ms": 999, "tpot_ms": 20}}])


def test_an_interrupted_fleet_goes_on_with_the_model_that_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []
    real = fleets.staircase

    def until_the_second(scenario: Any, *rest: Any, **options: Any) -> Any:
        if searched:
            raise KeyboardInterrupt
        searched.append(scenario.model.name)
        return real(scenario, *rest, **options)

    models = [DENSE | {"name": "a"}, DENSE | {"name": "b", "slo": {"ttft_ms": 2000, "tpot_ms": 60}}]
    monkeypatch.setattr(fleets, "staircase", until_the_second)
    with pytest.raises(KeyboardInterrupt):
        answer(tmp_path, models=models)
    monkeypatch.setattr(fleets, "staircase", real)
    assert answer(tmp_path, models=models).document["reused"] == 1


def test_a_damaged_staircase_is_searched_again(kept: Path, tmp_path: Path) -> None:
    first = afd_dse.fleet(SMALL | {"models": [DENSE]}, out=tmp_path)
    for file in (tmp_path / "staircases").glob("*.parquet"):
        file.write_bytes(b"no table")
    again = afd_dse.fleet(SMALL | {"models": [DENSE]}, out=tmp_path)
    assert again.document["reused"] == 0
    assert again.document["models"] == first.document["models"]


def test_whole_nodes_are_given_where_models_share_none() -> None:
    pools = [{"name": "main", "accelerator": "h100_sxm", "count": 20}]
    models = [DENSE | {"name": "a"}, DENSE | {"name": "b"}]
    whole = afd_dse.fleet(SMALL | {"cluster": {"pools": pools}, "models": models, "own_nodes": True})
    # The last node has four GPUs only.
    assert sorted(model["gpus"] for model in whole.document["models"]) == [8, 8]
    assert not whole.document["warnings"]
    for model in whole.document["models"]:
        assert model["deployment"]["gpus"] <= model["gpus"]
        assert whole.results[model["name"]].best["label"] == model["deployment"]["label"]


def test_what_cannot_be_served_is_told_by_model_and_by_how_much(kept: Path) -> None:
    alone = answer(kept, models=asked(1e4, 1.0))
    assert not alone.feasible
    assert "chat: the whole cluster serves" in alone.document["reason"]
    assert "of 10,000 requests/s" in alone.document["reason"]
    together = answer(kept, models=asked(90.0, 20.0))
    assert not together.feasible
    assert f"the cluster has {GPUS}" in together.document["reason"]
    assert f"{together.document['growth']:.0%}".replace("%", " %") in together.document["reason"]
    # What it serves at best is shown all the same.
    np.testing.assert_allclose(
        min(rates(together)[0] / 90.0, rates(together)[1] / 20.0), together.document["growth"]
    )
    shrunk = answer(kept, models=asked(90.0, 20.0), objective="growth")
    assert not shrunk.feasible
    assert shrunk.document["growth"] == together.document["growth"] < 1.0
    strict = afd_dse.fleet(SMALL | {"models": [DENSE | {"slo": {"tpot_ms": 0.1}}]})
    assert "dense: no deployment meets its SLO" in strict.document["reason"]
    assert "TPOT" in strict.document["reason"]
    assert not strict.results


def test_a_model_that_nothing_can_serve_does_not_keep_the_others_from_being_weighed() -> None:
    models = [DENSE | {"demand": None}, DENSE | {"name": "strict", "demand": None, "slo": {"tpot_ms": 0.1}}]
    found = afd_dse.fleet(SMALL | {"models": models, "objective": "weighted_throughput"})
    assert found.feasible
    assert [model["deployment"] is None for model in found.document["models"]] == [False, True]


def test_problems_of_all_models_are_told_before_anything_is_searched(tmp_path: Path) -> None:
    wrong = [
        CHAT | {"quantization": {"gemm": "nvfp4"}},
        DENSE | {"speculative": {"draft_tokens": 1, "accepted_tokens_per_step": 1.5}},
    ]
    with pytest.raises(InputError) as error:
        afd_dse.fleet(SMALL | {"models": wrong}, out=tmp_path / "out")
    fields = [problem.field for problem in error.value.problems]
    assert any(field.startswith("models[0].") for field in fields)
    assert "models[1].speculative.draft_tokens" in fields
    assert not (tmp_path / "out").exists()


def test_a_model_that_lists_data_types_gets_the_best_of_them() -> None:
    types = ["fp8_block", "bfloat16"]
    one = DENSE | {"demand": {"requests_per_s": 4.0}}
    small = SMALL | {"cluster": POOLS, "search": {"space": "quick", "modes": ["colocated"]}}

    def found(gemm: Any) -> FleetResult:
        return afd_dse.fleet(
            small | {"models": [one | {"quantization": {"gemm": gemm}}], "objective": "growth"}
        )

    both, each = found(types), [found(gemm) for gemm in types]
    assert both.document["growth"] == pytest.approx(max(r.document["growth"] for r in each), rel=1e-9)
    (model,) = both.document["models"]
    chosen = model["deployment"]["quantization"]["gemm"]
    assert chosen in model["deployment"]["label"]
    assert model["job"]["quantization"]["gemm"] == chosen
    assert model["considered"] == sum(r.document["considered"] for r in each)
    again = afd_dse.estimate(model["job"], model["deployment"])
    assert again["requests_per_s"] == pytest.approx(model["deployment"]["requests_per_s"], rel=1e-9)
    own = both.results["dense"].best
    assert own is not None
    assert own["quantization"]["gemm"] == chosen
