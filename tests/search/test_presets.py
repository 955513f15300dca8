"""Every preset is searched, and only what it says is found."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from afd_dse.cost.columns import DECODE_PRIORITY, EXPERT_POLICIES, PHASES, POLICIES, TILE_SHARED, Candidates
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.expert_barrier import PREFETCH_OVERLAPPED
from afd_dse.errors import DatabaseError
from afd_dse.search.run import ModeOutcome, search
from afd_dse.search.space import Grid, load_space, restricted
from afd_dse.spec.cells import Partition, Phase, parse_partition
from afd_dse.spec.modes import named_modes, resolve_mode
from afd_dse.spec.presets import grids_of, presets
from afd_dse.spec.suggest import normalised
from tests.strategies import build, layout

NAMES = [preset.name for preset in presets()]
GB200_48 = ({"name": "main", "accelerator": "gb200", "count": 48},)
SKEW = {"expert_distribution": {"kind": "power_law", "exponent": 0.5}}
# Lists whose values stand in a column of the phase as they are.
AS_COLUMNS = ("tp", "cp", "pp", "moe_tp", "micro_batches")


@lru_cache(maxsize=1)
def outcomes() -> dict[str, ModeOutcome]:
    case = build("MiniMaxAI/MiniMax-M2.5", GB200_48, slo={"tpot_ms": 60, "ttft_ms": 3000}, workload=SKEW)
    modes = [(name, parse_partition(resolve_mode(name)[1])) for name in NAMES]
    found = search(
        case,
        load_space("quick"),
        modes,
        "throughput_per_gpu",
        grids={name: grids_of(name) for name in NAMES},
    )
    return {mode.name: mode for mode in found.modes}


def structure(partition: Partition, phase: Phase) -> str:
    """The grid that a phase's unit is cut by."""
    if partition.is_joint:
        return "whole" if len(partition.groups) == 1 else "shared"
    return "split" if partition.splits(phase) else "whole"


def restrictions(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Phase and lists that the preset sets for it."""
    partition = parse_partition(resolve_mode(name)[1])
    for phase in Phase:
        yield PHASES[phase], dict(grids_of(name).get(structure(partition, phase), {}))


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_finds_deployments_that_obey_it(name: str) -> None:
    outcome = outcomes()[name]
    assert outcome.found is not None
    assert len(outcome.ranking), outcome.note
    c = outcome.found.candidates
    for phase, lists in restrictions(name):
        for field in AS_COLUMNS:
            if field in lists:
                assert set(c.integer(f"{phase}_{field}")) <= set(lists[field]), (phase, field)
        if "redundant" in lists:
            assert set(c.integer(f"{phase}_redundant")) <= set(lists["redundant"])
        if "expert_policies" in lists:
            several = c.integer(f"{phase}_ep") > 1
            used = {EXPERT_POLICIES[code] for code in c.integer(f"{phase}_expert_policy")[several]}
            assert used <= set(lists["expert_policies"])
        if "policies" in lists:
            known = {POLICIES.index(p) if p != DECODE_PRIORITY else 0 for p in lists["policies"]}
            assert set(c.integer("policy")) <= known
        if "ffn_gpus" in lists:
            gpus = c.integer(f"{phase}_moe_tp") * c.integer(f"{phase}_ep")
            assert set(gpus) <= set(lists["ffn_gpus"])
    if (c.integer("policy") == TILE_SHARED).any():
        assert ((c.number("decode_share") > 0) & (c.number("decode_share") < 1)).all()


def best(name: str) -> float:
    outcome = outcomes()[name]
    assert outcome.found is not None
    return float(outcome.found.evaluation.metrics["tokens_per_s_per_gpu"][outcome.ranking[0]])


def test_what_copies_hot_experts_beats_what_leaves_them_under_skew() -> None:
    assert best("afore") > best("step_3")


def test_no_name_or_alias_means_two_things() -> None:
    spellings = [
        {normalised(name) for name in (mode.name, *mode.also_known_as)}
        for mode in (*named_modes(), *presets())
    ]
    assert sum(map(len, spellings)) == len(set().union(*spellings))


@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.name)
def test_a_preset_is_found_by_its_names_and_fits_every_shipped_space(preset: Any) -> None:
    for spelling in (preset.name, preset.name.replace("_", "-"), *preset.also_known_as):
        assert resolve_mode(spelling) == (preset.name, preset.partition)
    for space in ("quick", "default", "wide"):
        restricted(load_space(space), preset.grids, preset.name)
    assert preset.source


@pytest.mark.parametrize(
    "grids", [{"split": {"micro_batch": [1]}}, {"whole": {"policies": ["fifo"]}}, {"shared": {"tp": []}}]
)
def test_a_preset_that_no_space_can_hold_names_its_field(grids: Any) -> None:
    with pytest.raises(DatabaseError, match="preset mine: "):
        restricted(load_space("quick"), grids, "mine")


def test_prefetching_needs_slots() -> None:
    with pytest.raises(ValueError, match="redundant"):
        Grid.model_validate(load_space("quick").whole.model_dump() | {"expert_policies": ["prefetch"]})


def test_policies_of_different_systems_combine() -> None:
    """AFORE's copies on ExpertPlex's pool over GB200: faster than the pool without them, slower than even experts."""

    def step(policy: int, exponent: float) -> float:
        case = build(
            pools=GB200_48,
            workload={"expert_distribution": {"kind": "power_law", "exponent": exponent}},
        )
        row: Candidates = layout(
            case,
            parse_partition("PA | DA | PF DF"),
            np.random.default_rng(2),
            plain=True,
            policy=TILE_SHARED,
            decode_share=0.5,
            batch_size=128.0,
            chunk_tokens=4096.0,
            **{f"{phase}_{key}": value for phase in PHASES for key, value in unit.items()},
            **{f"{phase}_expert_policy": policy for phase in PHASES},
        )
        found = evaluate(case, row)
        assert np.isfinite(found.slack).all()
        return float(found.metrics["tpot_s"][0])

    unit = {"tp": 1, "dp": 16, "ep": 16, "moe_tp": 1, "redundant": 16, "micro_batches": 3, "replicas": 1}
    assert step(PREFETCH_OVERLAPPED, 0.0) <= step(PREFETCH_OVERLAPPED, 0.8) < step(0, 0.8)
