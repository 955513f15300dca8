"""Imbalance: loads of slots and ranks, tiles of experts, copies of experts, the best ratio of attention to FFN."""

from typing import Any

import numpy as np

from afd_dse.cost import imbalance, reconfiguration, tiles
from afd_dse.cost.imbalance import LengthMoments
from afd_dse.errors import InputError, Problem
from afd_dse.literature.answer import Answer, evaluator
from afd_dse.literature.rows import Inputs, Row


def _lengths(inputs: Inputs, side: str, kind: str) -> LengthMoments:
    """Lengths of ``side`` P or D: ``mu_P`` with ``cv_P`` or ``sigma_P``, a list, or ``{"kind", "mean", "cv"}``."""
    names = (f"mu_{side}", f"lengths_{side}", {"P": "isl", "D": "osl"}[side])
    name = names[0]
    value: Any = inputs.raw(*names)
    if isinstance(value, list):
        return LengthMoments.empirical(inputs.numbers(*names))
    if isinstance(value, dict):
        part = inputs.part(name, value)
        return _of_kind(
            part.text("kind", default=kind), part.positive("mean"), part.number("cv", default=0.0)
        )
    mean = inputs.positive(*names)
    cv = inputs.number(f"sigma_{side}", default=0.0) / mean or inputs.number(f"cv_{side}", default=0.0)
    kind = inputs.text(f"distribution_{side}", default="lognormal" if cv else kind)
    return _of_kind(kind, mean, cv)


def _of_kind(kind: str, mean: float, cv: float) -> LengthMoments:
    match kind.casefold():
        case "fixed":
            return LengthMoments.fixed(mean)
        case "geometric":
            return LengthMoments.geometric(mean, least=0)
        case "lognormal":
            return LengthMoments.lognormal(mean, cv)
    raise InputError(
        Problem("inputs.kind", kind, "is no distribution of lengths", "use fixed, geometric or lognormal")
    )


def _moments(row: Row) -> tuple[float, float]:
    """θ and ν²: fixed prompts and geometric outputs unless the row says otherwise."""
    described = row.stated(r"\b(fixed|geometric|lognormal) outputs?\b")
    output = described.group(1).lower() if described else "geometric"
    mean, variance = imbalance.kv_load_moments(
        _lengths(row.inputs, "P", "fixed"), _lengths(row.inputs, "D", output)
    )
    return float(mean), float(variance)


@evaluator
def kv_load_moments(row: Row) -> Answer:
    """Mean KV tokens of a slot; its variance or standard deviation too where the row speaks of them."""
    mean, variance = _moments(row)
    spread = row.stated(r"varian|standard deviation|\bstd\b|\bnu\b|ν")
    note = f"standard deviation {np.sqrt(variance):.4g} tokens"
    if spread is None:
        return Answer.of(mean, note=note)
    squared = "varian" in spread.group(0).lower()
    return Answer.of(mean, variance if squared else float(np.sqrt(variance)), note=note)


@evaluator
def optimal_ratio(row: Row) -> Answer:
    """Attention ranks per FFN rank that balance both, at each batch."""
    inputs = row.inputs
    if inputs.has("alphaA_over_alphaF"):
        slope = inputs.positive("alphaA_over_alphaF")
        difference = inputs.number("betaA_minus_betaF_over_alphaF")
    else:
        ffn = inputs.positive("alphaF", "alpha_F")
        slope = inputs.positive("alphaA", "alpha_A") / ffn
        difference = (inputs.number("betaA", "beta_A") - inputs.number("betaF", "beta_F")) / ffn
    found = imbalance.optimal_attention_ratio(
        _moments(row)[0],
        row.listed("B batch", r"\b(?:batch|B)\b"),
        attention_slope=slope,
        ffn_slope=1.0,
        intercept_difference=difference,
    )
    return Answer.of(*np.atleast_1d(found))


@evaluator
def barrier_overhead(row: Row) -> Answer:
    """How much longer than the mean the busiest of r attention ranks takes, per cent, for each r."""
    mean, variance = _moments(row)
    slots, ranks = row.listed("B batch", r"\b(?:batch|B)\b"), row.listed("r ranks", r"\b(?:r|ranks)\b")
    if min(len(slots), len(ranks)) > 1:
        raise InputError(Problem("inputs.B", slots, "and r are both lists", "give one batch or one r"))
    return Answer.of(*(100.0 * imbalance.barrier_overhead(mean, variance, slots, ranks)))


@evaluator
def tile_count(row: Row) -> Answer:
    """Tiles of a batch of tokens per expert."""
    inputs = row.inputs
    stated = inputs.raw("tokens_per_expert")
    if isinstance(stated, dict):
        stated = list(stated.values())
    tokens = Inputs({"tokens_per_expert": stated}).at_least_zero("tokens_per_expert")
    return Answer.of(float(tiles.tile_count(tokens, inputs.positive("tile"))))


@evaluator
def exposed_copy(row: Row) -> Answer:
    """What copying an expert adds to a step: with overlap (one value where all agree), and without; unit as stated."""
    inputs = row.inputs.in_one_unit("copy", "window")
    copy, window = np.array(inputs.at_least_zero("copy")), np.array(inputs.at_least_zero("window"))
    if copy.shape != window.shape:
        # Ranges of unlike length: the longest copy in the shortest window.
        copy, window = copy.max(keepdims=True), window.min(keepdims=True)
    hidden = reconfiguration.exposed_copy(copy, window)
    plain = reconfiguration.exposed_copy(copy, window, overlapped=False)
    shown = [float(hidden[0])] if np.ptp(hidden) == 0 else [float(x) for x in hidden]
    listed = ", ".join(f"{x:g}" for x in plain)
    return Answer.of(*shown, f"= copy time ({listed})")
