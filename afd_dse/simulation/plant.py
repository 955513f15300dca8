"""What a simulation runs on: engines with their ranks, KV stores, policies and links of one deployment."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from afd_dse.cost.columns import PRIORITIZED, TILE_SHARED, Candidates
from afd_dse.cost.evaluation import Evaluation
from afd_dse.cost.expert_cache import ExpertCache, freed_bytes
from afd_dse.cost.memory import TERMS, kv_bytes
from afd_dse.cost.phase import Cut
from afd_dse.cost.scenario import Scenario
from afd_dse.spec.cells import ATTENTION_CELL, FFN_CELL, PARTITIONS, Cell, Phase

Routing = Literal["least_loaded", "round_robin", "length_buckets", "shared_queue"]
ROUTINGS: tuple[Routing, ...] = ("least_loaded", "round_robin", "length_buckets", "shared_queue")
KvPolicy = Literal["grow", "reserve"]
KV_POLICIES: tuple[KvPolicy, ...] = ("grow", "reserve")
Batching = Literal["fifo", "buckets"]
BATCHINGS: tuple[Batching, ...] = ("fifo", "buckets")
_UNLIMITED = 1_000_000


@dataclass(frozen=True, slots=True)
class KvStore:
    """KV cache of one attention rank: what a GPU of it can hold, and what a sequence takes of it, bytes."""

    capacity: float
    per_token: float
    per_sequence: float

    def bytes_of(self, tokens: float) -> float:
        """A sequence's KV and state."""
        return tokens * self.per_token + self.per_sequence


@dataclass(frozen=True, slots=True)
class Plant:
    """A deployment as the simulator sees it.

    Engines ("lanes": a unit, or one for each of its pipeline stages, which work on different batches at once) with
    attention ranks that step together. With ``shared_steps`` the decode lanes do prefill as well and there are no
    prefill lanes. ``replicas`` pairs lanes that disturb each other (``interferes``). ``one_cache``: prefill and decode
    attention of a replica are the same ranks, so nothing is handed over. ``transfer_s_per_token`` seconds of a KV
    hand-over per prompt token, ``layers`` parts in which it can follow prefill. ``mean_batch`` decode sequences of a
    lane's rank that the deployment was found for. ``request_s`` passes between a request's arrival and its queue (HTTP,
    tokenisation). ``prompts_per_step`` limits the prompts of a rank in one step. ``batching``: ``fifo`` packs a step
    with what waits longest, ``buckets`` with prompts about as long as the one that waits longest.
    ``admission_steps`` run on a busy engine that shares steps before a request which has arrived takes part in one.
    """

    replicas: int
    prefill_lanes: int
    prefill_ranks: int
    decode_lanes: int
    decode_ranks: int
    shared_steps: bool
    prioritized: bool
    one_cache: bool
    interferes: bool
    chunk_tokens: float
    prefill_store: KvStore
    decode_store: KvStore
    transfer_s_per_token: float = 0.0
    layers: int = 1
    mean_batch: float = 1.0
    tokens_per_sequence: int = 1
    accepted_per_step: float = 1.0
    request_s: float = 0.0
    admission_steps: float = 0.0
    kv_policy: KvPolicy = "grow"
    routing: Routing = "least_loaded"
    batching: Batching = "fifo"
    max_batch: int | None = None
    prompts_per_step: int | None = None
    block_tokens: int = 512

    @property
    def most_sequences(self) -> int:
        """Decode sequences that a rank may run at once, by rule or by step size; the KV store limits them besides."""
        most = _UNLIMITED if self.max_batch is None else self.max_batch
        if self.shared_steps and not self.prioritized:
            # A step must have room for one prompt token besides the sequences, else prefill never ends.
            most = min(most, int((self.chunk_tokens - 1.0) // self.tokens_per_sequence))
        return max(most, 1)


def plant_of(
    scenario: Scenario,
    candidate: Candidates,
    evaluation: Evaluation,
    *,
    most_context: float,
    kv_policy: KvPolicy | None = None,
    routing: Routing = "least_loaded",
    batching: Batching = "fifo",
    max_batch: int | None = None,
    cache: ExpertCache | None = None,
) -> Plant:
    """The plant of one candidate (a block of one row) and its evaluation.

    ``most_context`` tokens of the longest request: a windowed layer holds its window of them at most. What a GPU can
    hold is what its memory budget leaves beside weights, activations and framework; with ``cache`` also the room of
    experts that lie elsewhere.
    """
    partition = PARTITIONS[int(candidate.integer("partition")[0])]
    cuts = {phase: Cut.of(candidate, phase) for phase in Phase}
    prefill, decode = cuts[Phase.PREFILL], cuts[Phase.DECODE]
    lanes = {phase: int(cut.replicas[0] * cut.pp[0]) for phase, cut in cuts.items()}
    policy = int(candidate.integer("policy")[0])
    of = partition.group_of
    freed = {
        of[FFN_CELL[phase]]: 0.0 if cache is None else float(freed_bytes(scenario, cuts[phase], cache)[0])
        for phase in Phase
    }

    def store(phase: Phase) -> KvStore:
        group = of[ATTENTION_CELL[phase]]
        return _store(scenario, cuts[phase], evaluation, group, most_context, freed.get(group, 0.0))

    shared = partition.shares_steps and policy != TILE_SHARED
    return Plant(
        replicas=int(decode.replicas[0]),
        prefill_lanes=0 if shared else lanes[Phase.PREFILL],
        prefill_ranks=int(prefill.dp[0]),
        decode_lanes=lanes[Phase.DECODE],
        decode_ranks=int(decode.dp[0]),
        shared_steps=shared,
        prioritized=shared and policy == PRIORITIZED,
        one_cache=of[Cell.PA] == of[Cell.DA],
        interferes=partition.is_joint and not shared,
        chunk_tokens=float(candidate.number("chunk_tokens")[0]),
        prefill_store=store(Phase.PREFILL),
        decode_store=store(Phase.DECODE),
        transfer_s_per_token=float(evaluation.metrics["kv_transfer_s"][0]) / scenario.workload.isl,
        layers=scenario.model.layers,
        mean_batch=float(candidate.number("batch_size")[0]) / float(decode.pp[0]),
        tokens_per_sequence=scenario.tokens_per_sequence,
        accepted_per_step=scenario.accepted_per_step,
        kv_policy=kv_policy or ("reserve" if scenario.framework.held_output_share >= 1.0 else "grow"),
        request_s=float(scenario.overhead("request_s")[prefill.attention_pool][0]),
        admission_steps=float(scenario.overhead("admission_steps")[decode.attention_pool][0])
        if shared
        else 0.0,
        routing=routing,
        batching=batching,
        max_batch=max_batch,
    )


def _store(
    scenario: Scenario, cut: Cut, evaluation: Evaluation, group: int, most_context: float, freed: float
) -> KvStore:
    """The KV store of a rank of ``group``. Lanes of a pipeline divide the layers, so each has a whole store.

    ``freed`` bytes of the weights lie elsewhere.
    """
    terms = evaluation.memory[0, group]
    used = float(terms.sum() - terms[TERMS.index("kv_cache")])
    free = max(float(evaluation.memory_budget[0, group]) - used + freed, 0.0)
    # NOTE: read off the cost model's own function, as frameworks differ in pages, windows and layouts. A windowed layer
    # counts with what it holds of the longest request.
    alone = replace(scenario, workload=replace(scenario.workload, prefix=0.0, prefix_shared=False))
    page = float(scenario.framework.block_tokens)
    tokens = np.ceil(max(most_context, page) / page) * page
    one = np.ones(len(cut.tp))
    near, far = (
        float((kv_bytes(alone, cut, one, context) * cut.pp)[0]) for context in (tokens, 2.0 * tokens)
    )
    per_token = (far - near) / tokens
    # Half of a sequence's last page is empty on average.
    per_sequence = max(near - per_token * tokens, 0.0) + per_token * (page - 1.0) / 2.0
    return KvStore(free, per_token, per_sequence)
