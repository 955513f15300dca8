"""A deployment as engines: what the files of every target are written from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from afd_dse.cost.queueing import length_quantile
from afd_dse.cost.scenario import Pool, Scenario
from afd_dse.errors import InputError, Problem

SERVE, PREFILL, DECODE, ATTENTION, FFN = "serve", "prefill", "decode", "attention", "ffn"
"""What an engine does: both phases, one of them, or one side of decode."""
_ROLES = {
    "PA PF DA DF": SERVE,
    "PA PF": PREFILL,
    "DA DF": DECODE,
    "DA": ATTENTION,
    "DF": FFN,
}
# A batch is a mean. Requests in flight vary like a Poisson number: so many standard deviations of it still run.
_DEVIATIONS = 3.0
# Longer requests than this share of all are refused, in multiples of so many tokens.
_LENGTHS, _LENGTH_STEP = 99.9, 1024


@dataclass(frozen=True, slots=True)
class Engine:
    """Equal engines of a deployment: ``replicas`` of ``gpus`` each. Degrees that do not apply are 1.

    ``sequences`` are the most that an attention rank runs at once, ``tokens`` the most of one of its steps.
    ``memory_fraction`` is what the framework may fill, counted as the framework counts it.
    """

    role: str
    pool: str
    accelerator: str
    replicas: int
    gpus: int
    node_gpus: int
    tp: int
    dp: int
    cp: int
    pp: int
    moe_tp: int
    ep: int
    redundant: int
    micro_batches: int
    sequences: int
    tokens: int
    memory_fraction: float

    @property
    def nodes(self) -> int:
        """Nodes that one engine spans."""
        return -(-self.gpus // self.node_gpus)

    @property
    def gpus_per_node(self) -> int:
        """GPUs that one engine has on each of its nodes."""
        return self.gpus // self.nodes

    @property
    def words(self) -> str:
        """Number and size in words."""
        many = "one engine" if self.replicas == 1 else f"{self.replicas} engines"
        size = f"{self.gpus} {self.accelerator} GPU{'s' if self.gpus > 1 else ''}"
        return f"{many} of {size}{f' on {self.nodes} nodes' if self.nodes > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A deployment as engines, and what is set for all of them.

    ``checkpoint`` is a name or path as the engine takes it, ``longest`` the tokens of a request at most, prompt and
    output, ``longest_prompt`` those of its prompt. ``experts`` of the model, 0 of a dense one.
    """

    checkpoint: str
    family: str
    engines: tuple[Engine, ...]
    kv_cache: str
    block_tokens: int
    longest: int
    longest_prompt: int
    prefix_caching: bool
    draft_tokens: int
    experts: int

    def engine(self, role: str) -> Engine | None:
        """The engines of a role."""
        return next((engine for engine in self.engines if engine.role == role), None)

    @property
    def hands_over(self) -> bool:
        """Whether prefill hands the KV cache to decode on other GPUs."""
        return self.engine(PREFILL) is not None


def plan_of(scenario: Scenario, deployment: Mapping[str, Any], checkpoint: str) -> Plan:
    """The engines of a deployment's document.

    Raises :class:`InputError` where an engine does not divide evenly among nodes.
    """
    workload, pools = scenario.workload, {pool.name: pool for pool in scenario.pools}
    engines = tuple(
        _engine(scenario, deployment, group, pools[group["pool"]]) for group in deployment["groups"]
    )
    prompt = workload.prefix + workload.isl * length_quantile(workload.isl_cv, _LENGTHS)
    output = workload.osl * length_quantile(workload.osl_cv, _LENGTHS)
    return Plan(
        checkpoint=checkpoint,
        family=scenario.model.family,
        engines=engines,
        kv_cache=str(deployment["quantization"]["kv_cache"]),
        block_tokens=int(scenario.framework.block_tokens),
        longest=_up(prompt + output + scenario.draft_tokens),
        longest_prompt=_up(prompt),
        prefix_caching=workload.prefix > 0.0,
        draft_tokens=scenario.draft_tokens,
        experts=0 if scenario.moe is None else scenario.moe.experts,
    )


def _up(tokens: float) -> int:
    # More than ``tokens`` in any case: a chat template takes some.
    return (math.floor(tokens / _LENGTH_STEP) + 1) * _LENGTH_STEP


def _engine(
    scenario: Scenario, deployment: Mapping[str, Any], group: Mapping[str, Any], pool: Pool
) -> Engine:
    role = _ROLES[" ".join(group["cells"])]
    chunk = int(deployment["chunk_tokens"])
    if role == PREFILL:
        # What a step holds whole, and one that has begun.
        sequences, tokens = math.ceil(chunk / scenario.workload.isl) + 1, chunk
    else:
        batch = float(deployment["batch_size"])
        sequences = math.ceil(batch + _DEVIATIONS * math.sqrt(batch))
        decoding = sequences * scenario.tokens_per_sequence
        tokens = max(chunk, decoding) if role == SERVE else decoding
    engine = Engine(
        role=role,
        pool=pool.name,
        accelerator=pool.accelerator.name,
        replicas=group["replicas"],
        gpus=group["gpus"],
        node_gpus=pool.accelerator.node_gpus,
        **{name: group[name] or 1 for name in ("tp", "dp", "cp", "pp", "moe_tp", "ep")},
        redundant=group["redundant_experts"] or 0,
        micro_batches=group["micro_batches"],
        sequences=sequences,
        tokens=tokens,
        # Each framework has one of these; the others are 1.
        memory_fraction=round(pool.usable_fraction * pool.static_fraction * pool.free_fraction, 4),
    )
    if engine.gpus % engine.nodes:
        message = f"{engine.gpus} GPUs do not divide evenly among {engine.nodes} nodes of {engine.node_gpus}"
        raise InputError(Problem("--rank", deployment["label"], message, "choose another --rank"))
    return engine
