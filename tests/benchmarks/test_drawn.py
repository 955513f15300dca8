"""Candidates drawn from the declared space: legal, different, spread over it, and the same for the same seed."""

from functools import cache

import numpy as np
import pandas as pd
import pytest

from afd_dse.cost.columns import ALL_COLUMNS, Candidates
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.evaluation import CONSTRAINTS
from afd_dse.cost.from_job import scenario_from_job
from afd_dse.cost.scenario import Scenario
from afd_dse.results.deployment import deployment_of
from afd_dse.results.parse import candidates_of
from afd_dse.search.pool import Found
from afd_dse.search.space import load_space
from afd_dse.spec.cells import Phase, parse_partition
from afd_dse.spec.load import load_job
from benchmarks.drawn import draw, swept
from benchmarks.jobs import FAMILIES, deepseek

ROWS = 400


@cache
def cluster(gpus: int, pools: int) -> Scenario:
    return scenario_from_job(load_job(deepseek(gpus=gpus, pools=pools, space="quick")))


def drawn(partition: str, *, pools: int = 1, rows: int = ROWS, seed: int = 3) -> tuple[Scenario, Candidates]:
    scenario = cluster(128, pools)
    return scenario, draw(scenario, load_space("quick"), parse_partition(partition), rows, seed)


def table(candidates: Candidates) -> pd.DataFrame:
    return pd.DataFrame({name: candidates.columns[name] for name in ALL_COLUMNS})


@pytest.mark.parametrize("partition", [*FAMILIES.values(), "PA | DA | PF DF", "PA | PF | DA | DF"])
@pytest.mark.parametrize("pools", [1, 2])
def test_draws_are_different_and_fit_the_cluster(partition: str, pools: int) -> None:
    scenario, candidates = drawn(partition, pools=pools)
    assert len(candidates) == ROWS
    assert not table(candidates).duplicated().any()
    found = evaluate(scenario, candidates)
    assert (found.slack[:, CONSTRAINTS.index("gpus")] >= 0).all()
    assert np.isfinite(found.metrics["tpot_s"]).all()


@pytest.mark.parametrize("partition", FAMILIES.values())
def test_each_draw_is_a_deployment_that_estimate_accepts_and_reads_back_alike(partition: str) -> None:
    scenario, candidates = drawn(partition, rows=20)
    found = Found(candidates, evaluate(scenario, candidates))
    for row in range(20):
        again = candidates_of(deployment_of(scenario, found, row, partition), scenario)
        for name in ("decode_tp", "decode_ep", "prefill_dp", "decode_replicas", "batch_size", "chunk_tokens"):
            assert again.columns[name][0] == candidates.columns[name][row]


def test_draws_reach_all_of_the_grid() -> None:
    _, candidates = drawn("PA PF | DA | DF", rows=20_000)
    grid = load_space("quick").split
    assert set(candidates.number("batch_size")) == set(grid.batch.values())
    assert set(candidates.integer("decode_micro_batches")) == set(grid.micro_batches)
    assert candidates.integer("prefill_replicas").max() > 32


def test_the_seed_fixes_the_draw() -> None:
    one, same, other = (table(drawn("PA PF | DA DF", seed=seed)[1]) for seed in (1, 1, 2))
    assert one.equals(same)
    assert not one.equals(other)


def test_a_space_with_fewer_candidates_than_asked_for_gives_what_it_has() -> None:
    space = load_space("quick")
    small = space.model_copy(update={"whole": space.whole.model_copy(update={"gpus": [8], "tp": [8]})})
    found = draw(cluster(8, 1), small, parse_partition("PA PF DA DF"), 5_000, 0)
    assert 0 < len(found) < 5_000
    assert not table(found).duplicated().any()


@pytest.mark.parametrize("partition", FAMILIES.values())
def test_a_walk_takes_every_batch_and_fewer_replicas_of_what_it_comes_to(partition: str) -> None:
    scenario, space, kind = cluster(128, 1), load_space("quick"), parse_partition(partition)
    found = swept(scenario, space, kind, 2_000, 3)
    assert len(found) == 2_000
    assert not table(found).duplicated().any()
    assert set(found.columns["decode_replicas"]) > {1}
    columns = table(found)
    rest = columns.drop(columns=["batch_size", "prefill_replicas", "decode_replicas"])
    first = columns[(rest == rest.iloc[0]).all(axis=1)]
    grid = space.grid(kind, Phase.DECODE)
    if not kind.splits(Phase.DECODE) or kind.is_joint:
        assert (first.groupby("decode_replicas")["batch_size"].nunique() == len(grid.batch.values())).all()
    assert sorted(first["decode_replicas"].unique()) == [*range(1, first["decode_replicas"].max() + 1)]
