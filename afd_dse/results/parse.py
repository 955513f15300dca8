"""A deployment document back into a candidate: every field checked, whatever wrote it, a search or a person."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from afd_dse.architecture.model import MoeFfn
from afd_dse.architecture.weights import legal_attention_tp, legal_dense_tp, legal_moe_tp
from afd_dse.cost.columns import CHUNKED, EXPERT_POLICIES, PHASES, TILE_SHARED, Candidates
from afd_dse.cost.evaluate import evaluate
from afd_dse.cost.expert_barrier import copies_experts
from afd_dse.cost.scenario import Scenario
from afd_dse.errors import InputError, Problem
from afd_dse.operators.latency import FloatArray
from afd_dse.results.deployment import ATTENTION_DEGREES, FFN_DEGREES, METRIC_NAMES
from afd_dse.results.layout import Group
from afd_dse.results.policies import policy_code
from afd_dse.spec.cells import (
    ATTENTION_CELL,
    FFN_CELL,
    Cell,
    Partition,
    Phase,
    parse_partition,
    partition_index,
    phase_of,
)
from afd_dse.spec.modes import resolve_mode
from afd_dse.spec.suggest import choose

# What describes a deployment; everything else that `deployment_of` writes follows from it and is ignored.
_GIVEN = (
    "mode",
    "partition",
    "groups",
    "batch_size",
    "requests_per_s",
    "chunk_tokens",
    "policy",
    "decode_share",
)
_FOLLOWS = (
    "label",
    "description",
    "feasible",
    "reason",
    "binding",
    "slack",
    "launchable",
    "gpus",
    *(name for name, _, _ in METRIC_NAMES),
    "breakdown",
    "quantization",
    "provenance",
    "intervals",
    "slo_probability",
    "cluster_copies",
    "cluster_tokens_per_s",
    "rank",
    "constraint",
    "operators",
    "stations",
    "warnings",
    "intervals",
    "slo_probability",
)
_GROUP_GIVEN = (
    "cells",
    "pool",
    "accelerator",
    "gpus",
    "replicas",
    *ATTENTION_DEGREES,
    *FFN_DEGREES,
    "expert_policy",
    "batch_size",
    "micro_batches",
)
_GROUP_FOLLOWS = ("label", "gpus_total", "memory_gib", "expert_imbalance", "exposed_copy_ms")
# Decode sequences per attention rank between which a request rate is looked for, and the points of one pass.
_BATCH_RANGE = (2.0**-24, 2.0**20)
_BATCH_POINTS = 64
_BATCH_PASSES = 9
LARGEST = 1_000_000
_LOADS = "give batch_size (decoding sequences per attention rank), or requests_per_s to solve for it"


class _Reader:
    """Takes fields out of a mapping and notes what is wrong with them."""

    def __init__(self, data: Mapping[str, Any], path: str, problems: list[Problem]) -> None:
        self.data, self.path, self.problems = data, path, problems

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def wrong(self, name: str, message: str, remedy: str, value: object = None) -> None:
        shown = self.data.get(name) if value is None else value
        self.problems.append(Problem(self.at(name), shown, message, remedy))

    def only(self, known: Sequence[str], ignored: Sequence[str]) -> None:
        for key in self.data:
            if key not in known and key not in ignored:
                self.wrong(str(key), "unknown key", choose(key, known))

    def text(self, name: str) -> str | None:
        value = self.data.get(name)
        if value is None or isinstance(value, str):
            return value
        self.wrong(name, "text is needed", "put it in quotes")
        return None

    def integer(self, name: str, default: int | None, least: int = 1) -> int | None:
        """A whole number; ``default`` where absent or null, None and a problem where it is not usable."""
        value = self.data.get(name)
        if value is None:
            return default
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or not least <= value <= LARGEST:
            self.wrong(name, f"a whole number of at least {least} is needed", f"e.g. {name}: {max(least, 1)}")
            return None
        return int(value)

    def positive(self, name: str) -> float | None:
        """A number above zero, None where absent; a problem where it is not usable."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < float("inf"):
            self.wrong(name, "a number above 0 is needed", f"e.g. {name}: 64")
            return None
        return float(value)


def candidates_of(deployment: object, scenario: Scenario) -> Candidates:
    """The candidate, a block of one row, that a deployment document describes.

    Needed are groups (their cells, pool where the cluster has several, degrees other than 1), ``chunk_tokens`` and
    ``batch_size`` or ``requests_per_s``; results that the document also holds are ignored. Raises
    :class:`InputError` with the path of every field that is missing, malformed or contradicts another.
    """
    problems: list[Problem] = []
    if not isinstance(deployment, Mapping):
        remedy = "give a mapping with groups, batch_size and chunk_tokens"
        raise InputError(Problem("deployment", deployment, "a mapping is needed", remedy))
    reader = _Reader(deployment, "", problems)
    reader.only(_GIVEN, _FOLLOWS)
    named = _named_partition(reader)
    groups = _groups(reader, scenario)
    partition = _partition(reader, groups, named)
    chunk, policy = reader.positive("chunk_tokens"), reader.text("policy")
    if chunk is None and "chunk_tokens" not in {problem.field for problem in problems}:
        reader.wrong(
            "chunk_tokens", "this is needed", "give the tokens of one prefill step per rank, e.g. 8192"
        )
    batch, rate = _load(reader, groups), reader.positive("requests_per_s")
    if problems or partition is None:
        raise InputError(problems)
    _check_units(reader, partition, groups)
    code = _policy(reader, partition, policy)
    share = _decode_share(reader, code)
    if batch is None and rate is None:
        reader.wrong("batch_size", "this is needed", _LOADS)
    if problems:
        raise InputError(problems)
    candidates = _columns(partition, groups, code, batch or 1.0, chunk or 1.0)
    candidates = candidates.replace(decode_share=share)
    if batch is None and rate is not None:
        candidates = candidates.replace(batch_size=_batch_for(scenario, candidates, rate))
    return candidates


def _named_partition(reader: _Reader) -> Partition | None:
    """The partition that ``partition`` and ``mode`` name, if any; they must agree."""
    found: dict[str, Partition] = {}
    for name in ("partition", "mode"):
        text = reader.text(name)
        if text is None:
            continue
        try:
            found[name] = parse_partition(text if name == "partition" else resolve_mode(text, name)[1], name)
        except InputError as error:
            reader.problems.extend(error.problems)
    if len(found) == 2 and found["partition"] != found["mode"]:
        reader.wrong(
            "mode", f"this mode is {found['mode'].text}, not the partition given", "keep one of the two"
        )
    return found.get("partition", found.get("mode"))


def _groups(reader: _Reader, scenario: Scenario) -> list[Group]:
    entries = reader.data.get("groups")
    remedy = "list every group of cells with its pool and degrees, as `afd-dse optimize --json` does"
    if not isinstance(entries, list | tuple) or not entries:
        reader.wrong("groups", "a list of groups is needed", remedy)
        return []
    found = []
    for index, entry in enumerate(entries):
        path = f"groups[{index}]"
        if not isinstance(entry, Mapping):
            reader.problems.append(Problem(path, entry, "a mapping is needed", remedy))
            continue
        group = _one_group(_Reader(entry, path, reader.problems), scenario)
        if group is not None:
            found.append(group)
    return sorted(found, key=lambda group: min(group.cells))


def _one_group(reader: _Reader, scenario: Scenario) -> Group | None:
    before = len(reader.problems)
    reader.only(_GROUP_GIVEN, _GROUP_FOLLOWS)
    cells = _cells(reader)
    pool = _pool(reader, scenario)
    if cells is None:
        return None
    attention, ffn = any(c in ATTENTION_CELL for c in cells), any(c in FFN_CELL for c in cells)
    for names, present, side in ((ATTENTION_DEGREES, attention, "attention"), (FFN_DEGREES, ffn, "FFN")):
        for name in names if not present else ():
            if reader.integer(name, None, least=0) not in (None, 1, 0 if name == "redundant_experts" else 1):
                reader.wrong(name, f"has no meaning in a group without {side}", "leave it out")
    degree = {name: reader.integer(name, 1) if attention else 1 for name in ATTENTION_DEGREES}
    stage = (degree["tp"] or 1) * (degree["dp"] or 1) * (degree["cp"] or 1)
    dense = scenario.moe is None
    degree["moe_tp"] = (
        reader.integer("moe_tp", _dense_width(reader, stage, attention) if dense else 1) if ffn else 1
    )
    degree["ep"] = reader.integer("ep", 1) if ffn else 1
    redundant = reader.integer("redundant_experts", 0, least=0) if ffn else 0
    policy = _expert_policy(reader, ffn and not dense, redundant or 0)
    replicas, micro = reader.integer("replicas", 1), reader.integer("micro_batches", 1)
    gpus = reader.integer("gpus", None)
    if len(reader.problems) > before:
        return None
    known = {name: value or 1 for name, value in degree.items()}
    group = Group(
        cells=cells,
        pool=pool,
        redundant=redundant or 0,
        expert_policy=policy,
        replicas=replicas or 1,
        micro_batches=micro or 1,
        dense=dense,
        **known,
    )
    _check_cut(reader, scenario, group, gpus)
    return group if len(reader.problems) == before else None


def _expert_policy(reader: _Reader, experts: bool, redundant: int) -> int:
    text = reader.text("expert_policy")
    if text is None:
        return 0
    if text not in EXPERT_POLICIES:
        reader.wrong("expert_policy", "unknown policy", choose(text, EXPERT_POLICIES))
        return 0
    code = EXPERT_POLICIES.index(text)
    if not experts and code:
        reader.wrong("expert_policy", "has no meaning in a group without experts", "leave it out")
    elif copies_experts(np.array([code])).any() and not redundant:
        message = "copies go into the slots of redundant experts, and there are none"
        reader.wrong("expert_policy", message, "set redundant_experts, e.g. one for each GPU of the group")
    return code


def _dense_width(reader: _Reader, stage: int, attention: bool) -> int:
    """GPUs that a dense FFN is cut over where ``moe_tp`` is absent: those of its attention, or all of the group."""
    return stage if attention else reader.integer("gpus", 1) or 1


def _cells(reader: _Reader) -> tuple[Cell, ...] | None:
    remedy = "list cells of PA, PF, DA, DF, e.g. cells: [DA, DF]"
    value = reader.data.get("cells")
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        reader.wrong("cells", "the cells of the group are needed", remedy)
        return None
    unknown = [name for name in names if not isinstance(name, str) or name.upper() not in Cell.__members__]
    if unknown:
        reader.wrong("cells", "unknown cell", remedy, unknown[0])
        return None
    cells = sorted(Cell[name.upper()] for name in names)
    if len(set(cells)) < len(cells):
        reader.wrong("cells", "a cell stands twice", remedy)
        return None
    return tuple(cells)


def _pool(reader: _Reader, scenario: Scenario) -> int:
    names = [pool.name for pool in scenario.pools]
    name = reader.text("pool")
    if name is None and len(names) > 1:
        if reader.data.get("pool") is None:
            reader.wrong(
                "pool", "this is needed, for the cluster has several", f"use one of {', '.join(names)}"
            )
        return 0
    if name is not None and name not in names:
        reader.wrong("pool", "the cluster has no such pool", choose(name, names))
        return 0
    number = 0 if name is None else names.index(name)
    accelerator, actual = reader.text("accelerator"), scenario.pools[number].accelerator.name
    if accelerator is not None and accelerator != actual:
        message = f"the GPUs of pool {names[number]} are {actual}"
        reader.wrong("accelerator", message, "leave it out, or change the pool or the job")
    return number


def _check_cut(reader: _Reader, scenario: Scenario, group: Group, gpus: int | None) -> None:
    if gpus is not None and gpus != group.gpus:
        product = "tp × dp × cp × pp" if group.attention else "moe_tp × ep"
        reader.wrong(
            "gpus", f"{product} is {group.gpus}", "make the degrees multiply to the GPUs of one replica"
        )
    stage = group.gpus // group.pp
    if group.attention and group.ffn and group.moe_tp * group.ep != stage:
        message = f"moe_tp × ep is {group.moe_tp * group.ep}, but tp × dp × cp is {stage}"
        reader.wrong(
            "ep", message, "both sides of a group use the same GPUs: make the products equal", group.ep
        )
    if group.pp > 1 and not group.whole:
        message = "pipeline stages need attention and FFN in one group"
        reader.wrong("pp", message, "set pp: 1, or put both sides of the phase into the group")
    model, q = scenario.model, scenario.quantization
    if group.attention and not legal_attention_tp(model, group.tp).all():
        reader.wrong(
            "tp", f"the attention heads of {model.name} cannot be cut this way", "choose a divisor of them"
        )
    if not group.ffn:
        return
    if scenario.moe is None:
        if group.ep > 1:
            reader.wrong("ep", f"{model.name} has no experts", "set ep: 1 and cut its FFN by moe_tp")
        if group.redundant:
            reader.wrong("redundant_experts", f"{model.name} has no experts", "leave it out")
    else:
        _check_experts(reader, scenario.moe, group)
        if not legal_moe_tp(model, group.moe_tp, q.moe).all():
            reader.wrong(
                "moe_tp", f"experts of {model.name} in {q.moe} cannot be cut this way", "choose a smaller one"
            )
    shard = group.tp * group.cp if group.attention else group.moe_tp
    if not legal_dense_tp(model, shard, q.gemm).all():
        message = f"the dense or shared FFN of {model.name} in {q.gemm} cannot be cut {shard} ways"
        reader.wrong("tp" if group.attention else "moe_tp", message, "choose a smaller one")


def _check_experts(reader: _Reader, moe: MoeFfn, group: Group) -> None:
    slots = moe.experts + group.redundant
    if group.ep > slots:
        reader.wrong("ep", f"there are only {slots} experts to spread", "choose a smaller one")
    elif group.redundant and slots % group.ep:
        message = f"{slots} experts and copies do not spread evenly over {group.ep} GPUs"
        reader.wrong("redundant_experts", message, "choose a number that makes every GPU hold as many")


def _partition(reader: _Reader, groups: Sequence[Group], named: Partition | None) -> Partition | None:
    if reader.problems or not groups:
        return None
    try:
        found = parse_partition(" | ".join(group.name for group in groups), "groups")
    except InputError:
        held = [cell for group in groups for cell in group.cells]
        missing = [cell.name for cell in Cell if cell not in held]
        twice = sorted({cell.name for cell in held if held.count(cell) > 1})
        message = (
            f"no group serves {', '.join(missing)}" if missing else f"several groups serve {', '.join(twice)}"
        )
        reader.wrong("groups", message, "every cell PA PF DA DF must stand in exactly one group", "")
        return None
    if named is not None and named != found:
        message = f"the groups are {found.text}, but the deployment says {named.text}"
        reader.wrong("partition", message, "make them agree, or leave partition and mode out", named.text)
        return None
    return found


def _load(reader: _Reader, groups: Sequence[Group]) -> float | None:
    """The batch size: of the deployment, or of the group that holds decode attention; both must agree."""
    batch = reader.positive("batch_size")
    entries = reader.data.get("groups")
    if not groups or not isinstance(entries, list | tuple):
        return batch
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            continue
        own = _Reader(entry, f"groups[{index}]", reader.problems).positive("batch_size")
        if own is not None and batch is not None and own != batch:
            reader.problems.append(
                Problem(f"groups[{index}].batch_size", own, f"batch_size is {batch:g}", "keep one of the two")
            )
        batch = own if batch is None else batch
    return batch


def _check_units(reader: _Reader, partition: Partition, groups: Sequence[Group]) -> None:
    """Groups that belong together must be repeated together and use the same micro-batches."""
    for numbers in _together(partition, groups):
        first = groups[numbers[0]]
        for number in numbers[1:]:
            for field in ("replicas", "micro_batches"):
                ours, theirs = getattr(groups[number], field), getattr(first, field)
                if ours != theirs:
                    message = f"group {groups[number].name} has {ours}, but group {first.name} {theirs}"
                    remedy = "groups that serve the same requests must have the same number"
                    reader.problems.append(Problem(f"groups[{number}].{field}", ours, message, remedy))


def _together(partition: Partition, groups: Sequence[Group]) -> Iterator[list[int]]:
    if partition.is_joint:
        yield list(range(len(groups)))
        return
    for phase in Phase:
        yield [n for n, group in enumerate(groups) if phase_of(group.cells[0]) == phase]


def _policy(reader: _Reader, partition: Partition, policy: str | None) -> int:
    if policy is None:
        return CHUNKED
    code, message, remedy = policy_code(partition, policy)
    if message:
        reader.wrong("policy", message, remedy)
    return code


def _decode_share(reader: _Reader, policy: int) -> float:
    """Share of the SMs that decode gets beside prefill; 1 where they take turns."""
    share = reader.positive("decode_share")
    if policy != TILE_SHARED:
        if share is not None:
            reader.wrong("decode_share", "has no meaning without policy: tile_shared", "leave it out")
        return 1.0
    if share is None or share >= 1.0:
        reader.wrong("decode_share", "a number between 0 and 1 is needed", "e.g. decode_share: 0.5")
        return 1.0
    return share


def _columns(
    partition: Partition, groups: Sequence[Group], policy: int, batch: float, chunk: float
) -> Candidates:
    columns: dict[str, int | float] = {
        "partition": partition_index(partition),
        "policy": policy,
        "batch_size": batch,
        "chunk_tokens": chunk,
    }
    for phase in Phase:
        name = PHASES[phase]
        attention = groups[partition.group_of[ATTENTION_CELL[phase]]]
        ffn = groups[partition.group_of[FFN_CELL[phase]]]
        columns |= {f"{name}_{field}": getattr(attention, field) for field in ("tp", "dp", "cp", "pp")}
        columns |= {
            f"{name}_{field}": getattr(ffn, field) for field in ("moe_tp", "ep", "redundant", "expert_policy")
        }
        columns |= {f"{name}_attention_pool": attention.pool, f"{name}_ffn_pool": ffn.pool}
        columns |= {f"{name}_micro_batches": attention.micro_batches, f"{name}_replicas": attention.replicas}
    return Candidates.of(**columns)


def _batch_for(scenario: Scenario, candidates: Candidates, rate: float) -> float:
    """The smallest batch at which the deployment serves ``rate`` requests/s; InputError where none does.

    A grid on a log axis, narrowed around the first point that suffices.
    """
    low, high = np.log(_BATCH_RANGE[0]), np.log(_BATCH_RANGE[1])
    for _ in range(_BATCH_PASSES):
        points: FloatArray = np.exp(np.linspace(low, high, _BATCH_POINTS))
        row = np.zeros(_BATCH_POINTS, dtype=np.int64)
        served = evaluate(scenario, candidates.take(row).replace(batch_size=points)).metrics["requests_per_s"]
        enough = np.flatnonzero(served >= rate)
        if not len(enough):
            raise InputError(
                Problem(
                    "requests_per_s",
                    rate,
                    f"this layout serves at most {served.max():.4g} requests/s at any batch",
                    "lower it, or add replicas",
                )
            )
        first = int(enough[0])
        low, high = np.log(points[max(first - 1, 0)]), np.log(points[first])
    return float(np.exp(high))
