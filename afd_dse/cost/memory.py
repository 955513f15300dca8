"""Memory of one GPU of every group: weights, KV cache, activations and what the framework takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from afd_dse.architecture import weights
from afd_dse.architecture.model import LayerKind, MoeFfn
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import FrameworkProfile, Scenario
from afd_dse.cost.stations import ACTIVATION_BYTES
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.rows import distinct_rows
from afd_dse.spec.cells import ATTENTION_CELL, FFN_CELL, Cell, Phase, phase_of

TERMS = ("weights", "kv_cache", "activations", "framework")


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """Bytes per GPU of one group by term, each [n], and what the framework may fill of a GPU [n].

    The budget depends on the group: it is what the group takes beside its KV cache, and the room for that.
    """

    terms: dict[str, FloatArray]
    budget: FloatArray

    @property
    def total(self) -> FloatArray:
        """Sum of the terms, bytes [n]."""
        result: FloatArray = reduce(np.add, self.terms.values())
        return result

    @property
    def slack(self) -> FloatArray:
        """Free share of the budget [n]; negative when the group does not fit, -inf where there is no budget at all."""
        room = self.budget > 0.0
        result: FloatArray = np.where(room, 1.0 - self.total / np.where(room, self.budget, 1.0), -np.inf)
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


def max_concurrent_sequences(
    scenario: Scenario,
    group: tuple[Cell, ...],
    cuts: dict[Phase, Cut],
    step_tokens: dict[Phase, FloatArray],
    *,
    sequence_tokens: FloatArray | None = None,
    static_fraction: FloatArray | None = None,
    free_fraction: FloatArray | None = None,
) -> FloatArray:
    """Whole sequences that the KV cache of one attention rank of ``group`` holds at once, [n]; 0 where none fits.

    The same memory as :func:`group_memory`, read the other way. ``step_tokens`` tokens of one step per attention rank,
    for which the framework holds buffers back (its token budget); ``sequence_tokens`` own tokens that the cache
    reserves for a sequence, the workload's input and output if not given; the fractions instead of the pool's.
    An engine runs with more requests than this, too: those beyond wait. ValueError for a group without attention.
    """
    attention = [phase for phase in Phase if ATTENTION_CELL[phase] in group]
    if not attention:
        raise ValueError(f"a group of {' '.join(cell.name for cell in group)} has no KV cache")
    cut = cuts[attention[-1]]  # decode where the group has both
    workload = scenario.workload
    own = workload.isl + (workload.osl if Phase.DECODE in attention else 0.0)
    context = np.full(len(cut.tp), own) if sequence_tokens is None else sequence_tokens
    fixed = _fixed_terms(scenario, group, cuts, step_tokens)
    room = _kv_room(scenario, cut.attention_pool, fixed, static_fraction, free_fraction)
    none, one = (kv_bytes(scenario, cut, np.full(len(cut.tp), count), context) for count in (0.0, 1.0))
    result: FloatArray = np.maximum(np.floor((room - none) / (one - none)), 0.0)
    return result


def running_limit(
    scenario: Scenario,
    group: tuple[Cell, ...],
    cuts: dict[Phase, Cut],
    step_tokens: dict[Phase, FloatArray],
    *,
    input_tokens: FloatArray | None = None,
    output_tokens: FloatArray | None = None,
) -> FloatArray:
    """Sequences that one attention rank of ``group`` runs at once in steady state, [n]; requests beyond them wait.

    As :func:`max_concurrent_sequences`, but a sequence holds what the framework gives it on average while it grows,
    and the engine is launched without memory flags if it then holds a sequence at all. ``input_tokens`` and
    ``output_tokens`` of a sequence instead of the workload's.
    """
    profile, workload = scenario.framework, scenario.workload
    decodes = ATTENTION_CELL[Phase.DECODE] in group
    isl = workload.isl if input_tokens is None else input_tokens
    osl = workload.osl if output_tokens is None else output_tokens
    held = isl + osl * (profile.held_output_share if decodes else 0.0)
    tokens = reduce(np.maximum, [step_tokens[phase] for phase in Phase])
    pools = cuts[Phase.DECODE if decodes else Phase.PREFILL].attention_pool
    hbm = np.array([pool.accelerator.hbm_bytes for pool in scenario.pools])[pools]
    reserve = profile.default_reserve_bytes + profile.default_reserve_bytes_per_token * tokens
    sequence_tokens = np.broadcast_to(held, tokens.shape)
    flags = [np.minimum(scenario.fractions("static_fraction")[pools], 1.0 - reserve / hbm), None]
    plain, tuned = (
        max_concurrent_sequences(
            scenario, group, cuts, step_tokens, sequence_tokens=sequence_tokens, static_fraction=static
        )
        for static in flags
    )
    return np.where(plain >= 1.0, plain, tuned)


def _one_group(
    scenario: Scenario,
    group: tuple[Cell, ...],
    cuts: dict[Phase, Cut],
    decode_sequences: FloatArray,
    prefill_sequences: FloatArray,
    step_tokens: dict[Phase, FloatArray],
) -> GroupMemory:
    attention = [phase for phase in Phase if ATTENTION_CELL[phase] in group]
    cache = kv_cache(scenario, group, cuts, decode_sequences, prefill_sequences)
    fixed = _fixed_terms(scenario, group, cuts, step_tokens)
    if attention:
        room = _kv_room(scenario, cuts[attention[0]].attention_pool, fixed)
    else:
        room = _all_room(scenario, cuts[phase_of(group[0])].ffn_pool, fixed)
    terms = {term: cache if term == "kv_cache" else fixed[term] for term in TERMS}
    taken: FloatArray = reduce(np.add, fixed.values())
    return GroupMemory(terms, taken + room)


def kv_cache(
    scenario: Scenario,
    group: tuple[Cell, ...],
    cuts: dict[Phase, Cut],
    decode_sequences: FloatArray,
    prefill_sequences: FloatArray,
) -> FloatArray:
    """KV cache on a GPU of ``group`` for the sequences of each attention rank, bytes [n]."""
    workload, decodes = scenario.workload, ATTENTION_CELL[Phase.DECODE] in group
    cache = np.zeros(len(cuts[phase_of(group[0])].tp))
    if decodes:
        cache += kv_bytes(scenario, cuts[Phase.DECODE], decode_sequences, workload.isl + workload.osl)
    if ATTENTION_CELL[Phase.PREFILL] in group:
        # A group of both phases has counted a shared prefix with its decoding sequences.
        cache += kv_bytes(
            scenario,
            cuts[Phase.PREFILL],
            prefill_sequences,
            workload.isl,
            with_shared_prefix=not decodes,
        )
    return cache


def _fixed_terms(
    scenario: Scenario,
    group: tuple[Cell, ...],
    cuts: dict[Phase, Cut],
    step_tokens: dict[Phase, FloatArray],
) -> dict[str, FloatArray]:
    """Everything on a GPU of ``group`` but its KV cache, bytes [n] by term."""
    attention = [phase for phase in Phase if ATTENTION_CELL[phase] in group]
    ffn = [phase for phase in Phase if FFN_CELL[phase] in group]
    cut = cuts[attention[0] if attention else ffn[0]]
    rows = len(cut.tp)
    terms = {term: np.zeros(rows) for term in TERMS if term != "kv_cache"}
    pp = cut.pp if attention else np.ones(rows, dtype=np.int64)
    if attention:
        terms["weights"] += attention_weights(scenario, cut) / pp
    if ffn:
        # Shared experts and dense layers are stored once for both phases: as wide as the phase that needs them widest.
        terms["weights"] += (
            reduce(np.maximum, [ffn_weights(scenario, cuts[p], p, split=p not in attention) for p in ffn])
            / pp
        )
    for phase in attention:
        terms["activations"] += _attention_activations(scenario, cuts[phase], step_tokens[phase])
    for phase in ffn:
        split = phase not in attention
        terms["activations"] += _ffn_activations(scenario, cuts[phase], step_tokens[phase], split)
    profile = scenario.framework
    gpus = cut.attention_gpus if attention else cut.ffn_gpus
    terms["framework"] += profile.context_bytes + np.where(gpus > 1, profile.collective_bytes, 0.0)
    return terms


def _all_room(scenario: Scenario, pool: IntArray, fixed: dict[str, FloatArray]) -> FloatArray:
    """What ``fixed`` leaves of the memory that the framework may fill, bytes [n]; negative if it does not fit."""
    usable = scenario.fractions("usable_fraction")[pool] * scenario.visible_bytes[pool]
    result: FloatArray = usable - reduce(np.add, fixed.values())
    return result


def _kv_room(
    scenario: Scenario,
    pool: IntArray,
    fixed: dict[str, FloatArray],
    static_fraction: FloatArray | None = None,
    free_fraction: FloatArray | None = None,
) -> FloatArray:
    """Memory for the KV cache beside ``fixed``, bytes [n]; negative where not even that fits.

    vLLM fills a share of everything (``gpu_memory_utilization``); SGLang lets weights and cache fill a share of what is
    free before it loads the model (``mem_fraction_static``) and computes in the rest; TensorRT-LLM gives the cache
    a share of what a forward pass of the whole token budget leaves free (``free_gpu_memory_fraction``).
    """
    free = scenario.fractions("free_fraction")[pool] if free_fraction is None else free_fraction
    static = scenario.fractions("static_fraction")[pool] if static_fraction is None else static_fraction
    unloaded = scenario.visible_bytes[pool] - fixed["framework"]
    room = np.minimum(_all_room(scenario, pool, fixed), static * unloaded - fixed["weights"])
    return np.where(room > 0.0, free * room, room)


def attention_weights(scenario: Scenario, cut: Cut) -> FloatArray:
    """Attention, embedding and LM-head weights of one GPU, bytes [n]; draft modules with speculative decoding."""
    model, q, profile = scenario.model, scenario.quantization, scenario.framework
    eight_bit = q.gemm in ("fp8", "fp8_block")
    first, which = distinct_rows([cut.tp])
    return weights.attention_side_bytes(
        model,
        q,
        cut.tp[first],
        next_token=scenario.draft_tokens > 0,
        absorbed_bytes=profile.absorbed_bytes if eight_bit else weights.WEIGHT_BYTES["bfloat16"],
    )[which]


def ffn_weights(scenario: Scenario, cut: Cut, phase: Phase, split: bool) -> FloatArray:
    """FFN weights of one GPU for ``phase``, bytes [n]; ``split`` when the phase's attention is in another group.

    Dense FFNs and shared experts are cut over the GPUs that share tokens, as in the stations of the step.
    """
    shard = cut.moe_tp if split else np.maximum(cut.ffn_gpus // cut.token_holders(phase), 1)
    first, which = distinct_rows([cut.moe_tp, cut.ep, cut.redundant, shard])
    return weights.ffn_side_bytes(
        scenario.model,
        scenario.quantization,
        moe_tp=cut.moe_tp[first],
        ep=cut.ep[first],
        redundant=cut.redundant[first],
        shared_tp=shard[first],
        next_token=scenario.draft_tokens > 0,
    )[which]


def kv_bytes(
    scenario: Scenario,
    cut: Cut,
    sequences: FloatArray,
    context: FloatArray | float,
    *,
    with_shared_prefix: bool = True,
) -> FloatArray:
    """KV cache and recurrent state of one GPU for ``sequences`` per rank with ``context`` own tokens, bytes [n].

    A sequence holds whole pages of the cache. A private prefix is held by every sequence, a shared one once per rank.
    Context parallelism spreads tokens, pipeline stages hold their layers only.
    """
    workload, profile = scenario.workload, scenario.framework
    own = context if workload.prefix_shared else workload.prefix + context
    total = np.zeros(len(sequences))
    first, which = distinct_rows([cut.tp])
    for kind in scenario.model.kinds:
        per_token = weights.kv_bytes_per_token(
            kind, scenario.quantization, cut.tp[first], packed_latent=profile.packed_latent
        )[which]
        held = sequences * _tokens_held(profile, kind, own)
        if workload.prefix_shared and with_shared_prefix:
            # A sliding window keeps of the prefix what the sequence's own tokens leave of it.
            seen = _tokens_held(profile, kind, workload.prefix + context)
            held = held + (seen - _tokens_held(profile, kind, context))
        total += kind.count * (per_token * held / cut.cp + weights.state_bytes(kind, cut.tp) * sequences)
    return total / cut.pp


def _tokens_held(profile: FrameworkProfile, kind: LayerKind, context: FloatArray | float) -> FloatArray:
    """Tokens that one layer keeps of a sequence, in whole pages."""
    kept = weights.kv_tokens(kind, context, window_share=profile.window_share)
    return np.ceil(kept / profile.block_tokens) * profile.block_tokens


def kv_bytes_of_request(scenario: Scenario) -> float:
    """KV cache and state that prefill hands over for one request: its new tokens; both sides hold the prefix."""
    q = scenario.quantization
    return float(
        sum(
            kind.count
            * (
                weights.kv_bytes_per_token(
                    kind, q, np.array([1]), packed_latent=scenario.framework.packed_latent
                )[0]
                * float(weights.kv_tokens(kind, scenario.workload.isl))
                + weights.state_bytes(kind, np.array([1]))[0]
            )
            for kind in scenario.model.kinds
        )
    )


def _attention_activations(scenario: Scenario, cut: Cut, tokens: FloatArray) -> FloatArray:
    """Residual stream, projections and workspace of a step's tokens on one GPU, bytes [n]."""
    # Alive at once: residual, norm, q/k/v, attention output, projection, communication.
    buffers = scenario.framework.hidden_buffers
    result: FloatArray = tokens / cut.cp * scenario.model.hidden * ACTIVATION_BYTES * buffers
    return result


def _ffn_activations(scenario: Scenario, cut: Cut, tokens: FloatArray, split: bool) -> FloatArray:
    """Receive buffers and FFN activations of the widest layer on one FFN GPU, bytes [n].

    A dense layer holds gate, up and their product. Of a MoE layer the GPU holds every routed copy of a token that may
    come to it: input (fp8), output (bfloat16) and the three activations of its share of the expert's width. Frameworks
    size these buffers for all ``topk`` copies of a rank's tokens, wherever the experts are; experts that serve several
    ranks get their share of the copies of all.
    """
    model = scenario.model
    unit_tokens = tokens * cut.dp
    copies = unit_tokens / cut.ep if split else np.maximum(unit_tokens / cut.ep, tokens / cut.cp)
    widest = np.zeros(len(tokens))
    for kind in model.kinds:
        wide = 3.0 * kind.ffn.intermediate * ACTIVATION_BYTES
        if isinstance(kind.ffn, MoeFfn):
            through = (1.0 + ACTIVATION_BYTES) * model.hidden
            held = copies * kind.ffn.topk * (through + wide / cut.moe_tp)
        else:
            held = unit_tokens / cut.ffn_gpus * wide
        widest = np.maximum(widest, held)
    return widest
