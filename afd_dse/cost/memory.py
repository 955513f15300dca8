"""Memory of one GPU of every group: weights, KV cache, activations and what the framework takes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from afd_dse.architecture import weights
from afd_dse.architecture.model import MoeFfn
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Scenario
from afd_dse.operators.latency import FloatArray
from afd_dse.spec.cells import ATTENTION_CELL, FFN_CELL, Cell, Phase

TERMS = ("weights", "kv_cache", "activations", "framework")


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """Bytes per GPU of one group by term, each [n], and the budget of its GPUs [n]."""

    terms: dict[str, FloatArray]
    budget: FloatArray

    @property
    def total(self) -> FloatArray:
        """Sum of the terms, bytes [n]."""
        result: FloatArray = np.sum(list(self.terms.values()), axis=0)
        return result

    @property
    def slack(self) -> FloatArray:
        """Free share of the budget [n]; negative when the group does not fit."""
        result: FloatArray = 1.0 - self.total / self.budget
        return result


def group_memory(
    scenario: Scenario,
    groups: Sequence[tuple[Cell, ...]],
    cuts: dict[Phase, Cut],
    decode_sequences: FloatArray,
    prefill_sequences: FloatArray,
    step_tokens: dict[Phase, FloatArray],
) -> list[GroupMemory]:
    """Memory of every group of cells in ``groups``, in their order.

    ``decode_sequences`` and ``prefill_sequences`` in flight per attention rank over all micro-batches; ``step_tokens``
    tokens of one step per attention rank. The KV cache is reserved for the whole output of a sequence.
    """
    return [
        _one_group(scenario, group, cuts, decode_sequences, prefill_sequences, step_tokens)
        for group in groups
    ]


def _one_group(
    scenario: Scenario,
    group: tuple[Cell, ...],
    cuts: dict[Phase, Cut],
    decode_sequences: FloatArray,
    prefill_sequences: FloatArray,
    step_tokens: dict[Phase, FloatArray],
) -> GroupMemory:
    rows = len(decode_sequences)
    terms = {term: np.zeros(rows) for term in TERMS}
    attention = [phase for phase in Phase if ATTENTION_CELL[phase] in group]
    ffn = [phase for phase in Phase if FFN_CELL[phase] in group]
    pp = cuts[attention[0]].pp if attention else np.ones(rows, dtype=np.int64)
    if attention:
        cut = cuts[attention[0]]
        pool, gpus = cut.attention_pool, cut.attention_gpus
        terms["weights"] += attention_weights(scenario, cut) / pp
        workload = scenario.workload
        if Phase.DECODE in attention:
            context = workload.isl + workload.osl
            terms["kv_cache"] += kv_bytes(scenario, cuts[Phase.DECODE], decode_sequences, context)
        if Phase.PREFILL in attention:
            # A group of both phases has counted a shared prefix with its decoding sequences.
            terms["kv_cache"] += kv_bytes(
                scenario,
                cuts[Phase.PREFILL],
                prefill_sequences,
                workload.isl,
                with_shared_prefix=Phase.DECODE not in attention,
            )
    else:
        cut = cuts[ffn[0]]
        pool, gpus = cut.ffn_pool, cut.ffn_gpus
    if ffn:
        # Shared experts and dense layers are stored once for both phases: as wide as the phase that needs them widest.
        terms["weights"] += (
            np.max([ffn_weights(scenario, cuts[p], p, split=p not in attention) for p in ffn], axis=0) / pp
        )
    for phase in attention:
        terms["activations"] += _attention_activations(scenario, cuts[phase], step_tokens[phase])
    for phase in ffn:
        terms["activations"] += _ffn_activations(scenario, cuts[phase], phase, step_tokens[phase])
    profile = scenario.framework
    terms["framework"] += profile.context_bytes + np.where(gpus > 1, profile.collective_bytes, 0.0)
    return GroupMemory(terms, scenario.hbm_budget[pool])


def attention_weights(scenario: Scenario, cut: Cut) -> FloatArray:
    """Attention, embedding and LM-head weights of one GPU, bytes [n]; draft modules with speculative decoding."""
    model, q = scenario.model, scenario.quantization
    return weights.attention_side_bytes(model, q, cut.tp, next_token=scenario.draft_tokens > 0)


def ffn_weights(scenario: Scenario, cut: Cut, phase: Phase, split: bool) -> FloatArray:
    """FFN weights of one GPU for ``phase``, bytes [n]; ``split`` when the phase's attention is in another group.

    Dense FFNs and shared experts are cut over the GPUs that share tokens, as in the stations of the step.
    """
    shard = cut.moe_tp if split else np.maximum(cut.ffn_gpus // cut.token_holders(phase), 1)
    return weights.ffn_side_bytes(
        scenario.model,
        scenario.quantization,
        moe_tp=cut.moe_tp,
        ep=cut.ep,
        redundant=cut.redundant,
        shared_tp=shard,
        next_token=scenario.draft_tokens > 0,
    )


def kv_bytes(
    scenario: Scenario, cut: Cut, sequences: FloatArray, context: float, *, with_shared_prefix: bool = True
) -> FloatArray:
    """KV cache and recurrent state of one GPU for ``sequences`` per rank with ``context`` own tokens, bytes [n].

    A private prefix is held by every sequence, a shared one once per rank. Context parallelism spreads tokens,
    pipeline stages hold their layers only.
    """
    workload, q = scenario.workload, scenario.quantization
    own = workload.prefix + context if not workload.prefix_shared else context
    total = np.zeros(len(sequences))
    for kind in scenario.model.kinds:
        per_token = weights.kv_bytes_per_token(kind, q, cut.tp)
        held = sequences * weights.kv_tokens(kind, own)
        if workload.prefix_shared and with_shared_prefix:
            # A sliding window keeps of the prefix what the sequence's own tokens leave of it.
            seen = weights.kv_tokens(kind, workload.prefix + context)
            held = held + (seen - weights.kv_tokens(kind, context))
        total += kind.count * (per_token * held / cut.cp + weights.state_bytes(kind, cut.tp) * sequences)
    return total / cut.pp


def kv_bytes_of_request(scenario: Scenario) -> float:
    """KV cache and state that prefill hands over for one request: its new tokens; both sides hold the prefix."""
    q = scenario.quantization
    return float(
        sum(
            kind.count
            * (
                weights.kv_bytes_per_token(kind, q, np.array([1]))[0]
                * float(weights.kv_tokens(kind, scenario.workload.isl))
                + weights.state_bytes(kind, np.array([1]))[0]
            )
            for kind in scenario.model.kinds
        )
    )


def _attention_activations(scenario: Scenario, cut: Cut, tokens: FloatArray) -> FloatArray:
    """Residual stream, projections and workspace of a step's tokens on one GPU, bytes [n]."""
    # About twelve hidden-wide bfloat16 buffers live at once: residual, norm, q/k/v, attention output, communication.
    result: FloatArray = tokens / cut.cp * scenario.model.hidden * 2.0 * 12.0
    return result


def _ffn_activations(scenario: Scenario, cut: Cut, phase: Phase, tokens: FloatArray) -> FloatArray:
    """Receive buffers and expert activations on one FFN GPU, bytes [n]."""
    model = scenario.model
    per_rank = tokens * cut.dp / cut.ffn_gpus
    widest = 0.0
    for kind in model.kinds:
        if isinstance(kind.ffn, MoeFfn):
            widest = max(widest, kind.ffn.topk * (3.0 * model.hidden + 3.0 * kind.ffn.intermediate * 2.0))
        else:
            widest = max(widest, 3.0 * kind.ffn.intermediate * 2.0)
    result: FloatArray = per_rank * widest
    return result
