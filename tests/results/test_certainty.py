from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from afd_dse import Result, optimize
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.scenario import Scenario, Slo
from afd_dse.errors import InputError
from afd_dse.operators.latency import Provenance
from afd_dse.results.certainty import INTERVALS, certainty, interval_columns, rests_on_guesses
from afd_dse.search.pool import Found
from afd_dse.spec.calibration import Intervals, Scatter
from afd_dse.spec.cells import PARTITIONS, Phase
from afd_dse.spec.load import load_job
from tests.results.examples import SMALL
from tests.strategies import block, scenario

NARROW, WIDE = {"low": 0.9, "high": 1.25}, {"low": 0.5, "high": 3.0}
SCATTER = Intervals.model_validate(
    {
        kind: {metric: Scatter(**ends) for metric in ("tpot", "ttft", "throughput")}
        for kind, ends in (("measured", NARROW), ("borrowed", WIDE))
    }
)


def case(**limits: float) -> Scenario:
    return replace(scenario(), intervals=SCATTER, slo=Slo(**limits))


@lru_cache(maxsize=1)
def found() -> Found:
    candidates = block(scenario(), seed=5, each=2, batch_size=8.0)
    return Found(candidates, evaluate(scenario(), candidates))


def apart() -> "np.ndarray[Any, np.dtype[np.bool_]]":
    partitions = [PARTITIONS[index] for index in found().candidates.integer("partition")]
    return np.array([any(p.splits(phase) for phase in Phase) for p in partitions])


def test_an_estimate_lies_inside_its_interval_whose_ends_are_those_of_the_scatter() -> None:
    columns, guess = interval_columns(case(), found()), rests_on_guesses(found())
    assert guess.any()
    assert not guess.all()
    for name, _, metric, factor in INTERVALS:
        value = factor * found().evaluation.metrics[metric]
        finite = np.isfinite(value)
        low, high = columns[f"{name}_low"], columns[f"{name}_high"]
        assert ((low < value) & (value < high))[finite].all()
        for column, end in ((low, "low"), (high, "high")):
            ratio = column[finite] / value[finite]
            assert ratio == pytest.approx(np.where(guess, WIDE[end], NARROW[end])[finite])


def test_what_no_engine_has_run_and_what_is_borrowed_is_less_sure() -> None:
    everything = found()
    assert rests_on_guesses(everything)[apart()].all()
    assert apart().any()
    assert not apart().all()
    breakdown = everything.evaluation.breakdown

    def with_borrowed(share: float) -> Found:
        provenance = np.zeros_like(breakdown.provenance)
        provenance[:, Provenance.MEASURED], provenance[:, Provenance.BORROWED] = 1.0 - share, share
        explain = replace(breakdown, provenance=provenance).take
        return Found(everything.candidates, replace(everything.evaluation, explain=explain))

    assert rests_on_guesses(with_borrowed(0.4)).all()
    assert (rests_on_guesses(with_borrowed(0.2)) == apart()).all()


def test_without_limits_they_are_surely_kept() -> None:
    assert (interval_columns(case(), found())["slo_probability"] == 1.0).all()


@pytest.mark.parametrize("limit", ["tpot_s", "ttft_s", "latency_s"])
def test_a_wider_limit_is_never_less_probably_kept(limit: str) -> None:
    metric = {"ttft_s": "ttft_percentile_s"}.get(limit, limit)
    middle = float(np.median(found().evaluation.metrics[metric]))
    chances = np.array(
        [
            interval_columns(case(**{limit: middle * factor}), found())["slo_probability"]
            for factor in (0.05, 0.5, 0.9, 1.0, 1.1, 2.0, 20.0)
        ]
    )
    assert (np.diff(chances, axis=0) >= 0.0).all()
    assert (chances[-1] > chances[0]).any()
    assert ((chances >= 0.0) & (chances <= 1.0)).all()


def test_a_limit_at_the_ends_of_the_interval_is_kept_with_5_and_95_per_cent() -> None:
    row = int(np.flatnonzero(~rests_on_guesses(found()))[0])
    tpot = float(found().evaluation.metrics["tpot_s"][row])
    for end, chance in ((NARROW["low"], 0.05), (NARROW["high"], 0.95)):
        sure = certainty(case(tpot_s=tpot * end), found(), row)
        assert sure["slo_probability"] == pytest.approx(chance)


def test_several_limits_hold_with_the_product_of_their_probabilities() -> None:
    row = int(np.flatnonzero(~rests_on_guesses(found()))[0])
    metrics = found().evaluation.metrics
    tpot, ttft = float(metrics["tpot_s"][row]), float(metrics["ttft_percentile_s"][row])
    both = certainty(case(tpot_s=tpot * NARROW["high"], ttft_s=ttft * NARROW["high"]), found(), row)
    assert both["slo_probability"] == pytest.approx(0.95**2)
    hopeless = certainty(case(tpot_s=tpot * 0.1, ttft_s=ttft * 0.1), found(), row)
    assert hopeless["slo_probability"] == pytest.approx(0.0, abs=1e-6)


def test_probability_speaks_of_the_limits_that_the_user_set_not_of_the_tighter_ones() -> None:
    row = int(np.flatnonzero(~rests_on_guesses(found()))[0])
    tpot = float(found().evaluation.metrics["tpot_s"][row])
    asked = Slo(tpot_s=tpot * NARROW["high"])
    tighter = replace(case(), slo=Slo(tpot_s=tpot / 10.0, confidence=0.9, asked=asked))
    assert certainty(tighter, found(), row)["slo_probability"] == pytest.approx(0.95)


def test_without_a_scatter_nothing_is_said() -> None:
    bare = replace(case(), intervals=None)
    assert interval_columns(bare, found()) == {}
    assert certainty(bare, found(), 0) == {"intervals": None, "slo_probability": None}


def test_a_metric_without_bound_has_no_interval_and_keeps_no_limit() -> None:
    judged = {**found().evaluation.judged}
    for name in ("ttft_s", "ttft_percentile_s"):
        judged[name] = np.full_like(judged[name], np.inf)
    endless = Found(found().candidates, replace(found().evaluation, judged=judged))
    sure = certainty(case(ttft_s=100.0), endless, 0)
    assert sure["intervals"]["ttft_ms"] is None
    assert len(sure["intervals"]["tpot_ms"]) == 2
    assert sure["slo_probability"] == 0.0


# -- what a search does with it ----------------------------------------------------------------------------------------

JOB: dict[str, Any] = SMALL | {
    "slo": {"ttft_ms": 4000, "tpot_ms": 30},
    "search": {"modes": ["colocated", "pd", "afd"], "space": "quick"},
}


@lru_cache(maxsize=2)
def answer(confidence: float | None) -> Result:
    return optimize(JOB | {"slo": {**JOB["slo"], "confidence": confidence}})


def test_every_deployment_shows_how_sure_it_is() -> None:
    for deployment in (answer(None).best, *answer(None).pareto):
        assert deployment is not None
        assert 0.0 <= deployment["slo_probability"] <= 1.0
        for name in ("tpot_ms", "ttft_ms", "tokens_per_s_per_gpu"):
            low, high = deployment["intervals"][name]
            assert low < deployment[name] < high
    assert {f"{name}_{end}" for name, *_ in INTERVALS for end in ("low", "high")} <= set(
        answer(None).candidates
    )


def test_asked_confidence_is_kept_by_every_feasible_deployment_and_costs_throughput() -> None:
    free, sure = answer(None), answer(0.9)
    assert sure.feasible
    table = sure.candidates
    assert (table.loc[table["feasible"], "slo_probability"] >= 0.9 - 1e-9).all()
    assert free.best is not None
    assert sure.best is not None
    assert sure.best["tokens_per_s_per_gpu"] <= free.best["tokens_per_s_per_gpu"]
    # Without it the search goes to the limit, where a prediction is as likely to be over as under.
    loose = free.candidates
    assert loose.loc[loose["feasible"], "slo_probability"].min() < 0.9


def test_more_confidence_tightens_every_limit() -> None:
    slos = [
        scenario_from_job(load_job(JOB | {"slo": {**JOB["slo"], "confidence": c}})).slo
        for c in (0.6, 0.9, 0.99)
    ]
    assert slos[0].ttft_s > slos[1].ttft_s > slos[2].ttft_s
    assert slos[0].tpot_s > slos[1].tpot_s > slos[2].tpot_s
    assert all(slo.asked is not None and slo.asked.tpot_s == pytest.approx(0.03) for slo in slos)


def test_confidence_without_a_scatter_is_an_error_that_says_what_to_do() -> None:
    job = JOB | {"calibration": "none", "slo": {**JOB["slo"], "confidence": 0.9}}
    with pytest.raises(InputError, match=r"slo\.confidence: .*set calibration: default"):
        optimize(job)
    bare = scenario_from_job(load_job(JOB | {"calibration": "none"}))
    assert bare.intervals is None
    assert bare.slo.tpot_s == pytest.approx(0.03)
