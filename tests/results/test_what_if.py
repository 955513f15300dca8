import pytest

from afd_dse import estimate, load_job
from afd_dse.results.utilization import utilization
from afd_dse.results.what_if import FIXED_LOAD, what_if
from tests.results.examples import SMALL, answer, full, job


def rows() -> dict[tuple[str, float], dict[str, object]]:
    return {(row["change"], row["factor"]): row for row in full().document["what_if"]}


def test_the_answer_unchanged_is_the_answer_up_to_a_finer_load() -> None:
    best, row = full().document["best"], rows()["as asked", 1.0]
    answer_itself = best["tokens_per_s_per_gpu"]
    assert answer_itself * (1.0 - 1e-9) <= row["recommended"]["tokens_per_s_per_gpu"] <= answer_itself * 1.003
    assert row["best"]["tokens_per_s_per_gpu"] >= row["recommended"]["tokens_per_s_per_gpu"]


def test_experts_loaded_unevenly_never_help() -> None:
    uneven = rows()["experts loaded unevenly (power law 1.2)", 1.0]["best"]
    asked = rows()["as asked", 1.0]["best"]
    assert uneven["tokens_per_s_per_gpu"] <= asked["tokens_per_s_per_gpu"] * 1.003


def test_better_hardware_and_looser_limits_never_make_the_known_best_worse() -> None:
    asked = rows()["as asked", 1.0]["best"]["tokens_per_s_per_gpu"]
    names = [name for name, factor in rows() if factor > 1.0 and ("bandwidth" in name or "limit" in name)]
    assert len(names) >= 4
    for name in names:
        row = next(row for (other, factor), row in rows().items() if other == name and factor > 1.0)
        # The load is set on a grid of steps of 0.15 %.
        assert row["best"]["tokens_per_s_per_gpu"] >= asked * 0.997, name


def test_what_keeps_the_limits_is_feasible_and_the_best_is_no_worse_than_the_recommended() -> None:
    slo = SMALL["slo"]
    for (name, factor), row in rows().items():
        mine, best = row["recommended"], row["best"]
        if name == FIXED_LOAD:
            assert best is None
            continue
        if mine["feasible"]:
            assert best["tokens_per_s_per_gpu"] >= mine["tokens_per_s_per_gpu"]
            scale = factor if name == "TPOT limit" else 1.0
            assert mine["tpot_ms"] <= slo["tpot_ms"] * scale * (1.0 + 1e-9)


def test_a_change_of_the_batch_is_what_estimate_says_of_it() -> None:
    best = full().document["best"]
    row = rows()[FIXED_LOAD, 0.8]
    groups = [
        {**g, "batch_size": None if g["batch_size"] is None else 0.8 * g["batch_size"]}
        for g in best["groups"]
    ]
    found = estimate(job(), {**best, "groups": groups, "batch_size": 0.8 * best["batch_size"]})
    assert row["recommended"]["tpot_ms"] == pytest.approx(found["tpot_ms"], rel=1e-9)


def test_a_changed_link_is_what_estimate_says_of_a_job_with_that_link() -> None:
    best = full().document["best"]
    row = rows()["scale-up (NVLink) bandwidth", 0.5]["recommended"]
    slow = {"base": "h200_sxm", "scale_up_gb_s": 225.0}
    pools = [{"name": "main", "accelerator": slow, "count": 4}]
    changed = estimate(load_job(SMALL | {"cluster": {"pools": pools}}), best)
    if changed["feasible"]:
        assert row["tokens_per_s_per_gpu"] >= changed["tokens_per_s_per_gpu"] * (1.0 - 1e-9)


def test_a_price_changes_the_cost_in_proportion_and_nothing_else() -> None:
    asked, cheaper = rows()["as asked", 1.0]["recommended"], rows()["price of a GPU hour", 0.8]["recommended"]
    assert cheaper["usd_per_mtok"] == pytest.approx(0.8 * asked["usd_per_mtok"])
    assert cheaper["tpot_ms"] == asked["tpot_ms"]


def test_nothing_feasible_has_nothing_to_vary() -> None:
    assert what_if(job("IMPOSSIBLE"), answer("IMPOSSIBLE").document) == []
    assert utilization(job("IMPOSSIBLE"), answer("IMPOSSIBLE").document) == []


def test_useful_work_is_that_of_the_active_parameters_and_no_gpu_does_more_than_its_peak() -> None:
    document = full().document
    mine = [row for row in document["utilization"] if row["mode"] == document["best"]["mode"]]
    assert sum(row["gpus"] for row in mine) == document["best"]["gpus"]
    flop = sum(row["flop_per_s_per_gpu"] * row["gpus"] for row in mine)
    tokens = document["best"]["requests_per_s"] * (1024 + 256)
    # Two FLOP a parameter and token; attention over the context comes on top, embedding and head are not counted.
    least = 2.0 * 0.8 * document["model"]["active_parameters"] * tokens
    assert least <= flop <= 2.0 * least
    assert all(0.0 < row["hfu"] < 1.0 for row in document["utilization"])
    assert all(
        row["bandwidth_utilization"] is None or 0.0 < row["bandwidth_utilization"] < 1.05 for row in mine
    )
