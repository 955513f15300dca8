"""The groups of one candidate: who serves which cells on which GPUs, cut how; their short label and their words."""

from collections.abc import Sequence
from dataclasses import dataclass

from afd_dse.cost.columns import EXPERT_POLICIES, INTEGER_COLUMNS, PHASES, Candidates
from afd_dse.cost.scenario import Scenario
from afd_dse.rows import distinct_rows
from afd_dse.spec.cells import ATTENTION_CELL, FFN_CELL, PARTITIONS, Cell, Partition, Phase, phase_of

# Short names of the blocks that are more than one cell.
_BLOCKS = {
    (Cell.PA, Cell.PF): "P",
    (Cell.DA, Cell.DF): "D",
    (Cell.PA, Cell.DA): "A",
    (Cell.PF, Cell.DF): "F",
    (Cell.PA, Cell.PF, Cell.DA): "P&DA",
    (Cell.PA, Cell.PF, Cell.DF): "P&DF",
    (Cell.PA, Cell.DA, Cell.DF): "D&PA",
    (Cell.PF, Cell.DA, Cell.DF): "D&PF",
}
_EXPERT_POLICY_WORDS = {
    "history": "experts placed by past routing",
    "prefetch": "experts copied as they are routed",
    "prefetch_overlapped": "experts copied as they are routed, behind the pipeline",
}
_SIDES = {Cell.PA: "attention", Cell.DA: "attention", Cell.PF: "FFN", Cell.DF: "FFN"}


@dataclass(frozen=True, slots=True)
class Group:
    """One group of cells on GPUs of its own; degrees that do not apply to it are 1, redundant experts 0.

    ``gpus`` of one replica. ``tp``, ``dp``, ``cp`` cut attention, ``moe_tp`` and ``ep`` the FFN, ``pp`` both. A
    ``dense`` model has no experts: its FFN is cut by ``moe_tp`` alone.
    """

    cells: tuple[Cell, ...]
    pool: int
    tp: int
    dp: int
    cp: int
    pp: int
    moe_tp: int
    ep: int
    redundant: int
    replicas: int
    micro_batches: int
    dense: bool
    expert_policy: int = 0

    @property
    def attention(self) -> bool:
        """Whether the group holds attention of some phase."""
        return any(cell in ATTENTION_CELL for cell in self.cells)

    @property
    def ffn(self) -> bool:
        """Whether the group holds the FFN of some phase."""
        return any(cell in FFN_CELL for cell in self.cells)

    @property
    def whole(self) -> bool:
        """Whether the group holds attention and FFN of every phase that it serves."""
        return all(ATTENTION_CELL[p] in self.cells and FFN_CELL[p] in self.cells for p in self.phases)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Phases that the group serves."""
        return tuple(sorted({phase_of(cell) for cell in self.cells}))

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.dp * self.cp * self.pp if self.attention else self.moe_tp * self.ep

    @property
    def name(self) -> str:
        """The cells as text, ``"PA PF"``."""
        return " ".join(cell.name for cell in self.cells)

    @property
    def block(self) -> str:
        """The cells in the shortest words of the field: P, D, A, F, or the cells joined by ``&``."""
        return _BLOCKS.get(self.cells, "&".join(cell.name for cell in self.cells))

    @property
    def cut(self) -> str:
        """The parallelism in the field's short form: TP8, DEP8, TEP8, TP4DP8-EP32, TP8PP2."""
        ffn = (f"ETP{self.moe_tp}" if self.moe_tp > 1 else "") + (f"EP{self.ep}" if self.ep > 1 else "")
        attention = "".join(
            f"{name}{degree}"
            for name, degree in (("TP", self.tp), ("DP", self.dp), ("CP", self.cp))
            if degree > 1
        )
        if not self.attention:
            found = (f"TP{self.moe_tp}" if self.dense else ffn) or "TP1"
        elif not self.ffn or (self.dense and self.gpus > self.pp):
            found = attention or "TP1"
        elif self.gpus == self.pp:
            found = "TP1"
        elif self.ep == 1 and self.dp == 1 and self.cp == 1:
            found = f"TP{self.tp}"
        elif self.moe_tp == 1 and self.cp == 1 and self.ep == self.dp:
            found = f"DEP{self.dp}"
        elif self.moe_tp == 1 and self.cp == 1 and self.ep == self.tp:
            found = f"TEP{self.tp}"
        else:
            found = f"{attention}-{ffn}"
        return (
            found
            + (f"PP{self.pp}" if self.pp > 1 else "")
            + (f"+{self.redundant}R" if self.redundant else "")
        )


def groups_of(scenario: Scenario, candidates: Candidates, row: int) -> list[Group]:
    """The groups of one candidate, in the order of its partition."""
    partition = PARTITIONS[int(candidates.integer("partition")[row])]

    def value(phase: Phase, name: str) -> int:
        return int(candidates.integer(f"{PHASES[phase]}_{name}")[row])

    found = []
    for cells in partition.groups:
        # Phases of a group are cut alike: the later one speaks for both.
        attention = next((phase_of(c) for c in reversed(cells) if c in ATTENTION_CELL), None)
        ffn = next((phase_of(c) for c in reversed(cells) if c in FFN_CELL), None)
        last = phase_of(cells[-1])
        degree = {
            name: 1 if attention is None else value(attention, name) for name in ("tp", "dp", "cp", "pp")
        }
        degree |= {name: 1 if ffn is None else value(ffn, name) for name in ("moe_tp", "ep")}
        found.append(
            Group(
                cells=cells,
                pool=value(last, "attention_pool" if cells[-1] in ATTENTION_CELL else "ffn_pool"),
                redundant=0 if ffn is None else value(ffn, "redundant"),
                expert_policy=0 if ffn is None else value(ffn, "expert_policy"),
                replicas=value(last, "replicas"),
                micro_batches=value(last, "micro_batches"),
                dense=scenario.moe is None,
                **degree,
            )
        )
    return found


def units_of(partition: Partition, groups: Sequence[Group]) -> list[list[Group]]:
    """Groups by unit (what is replicated together): one unit where phases share groups, else prefill and decode."""
    if partition.is_joint:
        return [list(groups)]
    return [[group for group in groups if group.phases == (phase,)] for phase in Phase]


def label(scenario: Scenario, partition: Partition, groups: Sequence[Group]) -> str:
    """The deployment in the field's short form.

    ``TP8``, ``DEP8`` (attention DP, experts EP), ``TEP8`` (attention TP, experts EP), ``TP4DP8-EP32``; replicas in
    front; prefill ``+`` decode; attention and FFN apart as GPUs of each, ``48A16F``. ``@pool`` in mixed clusters,
    ``+32R`` redundant experts, ``ETP`` experts cut by width.
    """
    units = units_of(partition, groups)
    always = len(units) > 1
    return " + ".join(_unit(scenario, unit, always) for unit in units)


def labels(scenario: Scenario, candidates: Candidates) -> list[str]:
    """The labels of all candidates; those of one layout at many loads are written once."""
    first, which = distinct_rows([candidates.columns[name] for name in INTEGER_COLUMNS])
    layouts = candidates.take(first)
    written = [
        label(scenario, PARTITIONS[partition], groups_of(scenario, layouts, row))
        for row, partition in enumerate(layouts.integer("partition").tolist())
    ]
    return [written[layout] for layout in which.tolist()]


def _unit(scenario: Scenario, unit: Sequence[Group], always: bool) -> str:
    replicas = unit[0].replicas
    several = len(scenario.pools) > 1
    at = [f"@{scenario.pools[group.pool].name}" if several else "" for group in unit]
    if len(unit) == 1:
        text = unit[0].cut + at[0]
        return f"{replicas}x{text}" if replicas > 1 or always else text
    # Attention and FFN of everything that the unit serves: A and F say it all. Otherwise the blocks are named.
    plain = len(unit) == 2 and unit[0].attention != unit[0].ffn and unit[1].attention != unit[1].ffn
    same_pool = len({group.pool for group in unit}) == 1
    parts = []
    for group, where in zip(unit, at, strict=True):
        letter = ("A" if group.attention else "F") if plain else group.block
        parts.append(f"{group.gpus}{letter}{_impurity(group)}" + ("" if same_pool else where))
    text = ("" if plain and (same_pool or not several) else "+").join(parts) + (at[0] if same_pool else "")
    return f"{replicas}x({text})" if replicas > 1 or always else text


def _impurity(group: Group) -> str:
    """The cut of a group of a split unit where it is not what one expects: attention by DP, experts by EP."""
    attention = (
        ""
        if not group.attention
        else "".join(f"{name}{degree}" for name, degree in (("TP", group.tp), ("CP", group.cp)) if degree > 1)
    )
    unusual = group.ffn and not group.dense and group.moe_tp > 1
    ffn = f"ETP{group.moe_tp}" if unusual and (group.ep > 1 or not group.attention) else ""
    spare = f"{group.redundant}R" if group.redundant else ""
    found = "-".join(part for part in (attention, ffn, spare) if part)
    return f"({found})" if found else ""


def describe(scenario: Scenario, partition: Partition, groups: Sequence[Group]) -> str:
    """The deployment in words, one sentence a unit."""
    sentences = []
    for unit in units_of(partition, groups):
        phases = sorted({phase for group in unit for phase in group.phases})
        work = "Prefill and decode" if len(phases) == 2 else PHASES[phases[0]].capitalize()
        replicas = unit[0].replicas
        count = "one replica" if replicas == 1 else f"{replicas} replicas"
        if len(unit) == 1:
            each = " each" if replicas > 1 else ""
            text = f"{work} on {count} of {_gpus(scenario, unit[0])}{each}{_cut_words(scenario, unit[0])}"
        else:
            parts = [
                f"{_gpus(scenario, group)} for {_cells_words(group, len(phases) == 2)}{_cut_words(scenario, group)}"
                for group in unit
            ]
            listed = ", ".join(parts[:-1]) + " and " + parts[-1]
            text = f"{work} on {count}{', each of' if replicas > 1 else ' of'} {listed}"
        micro = max(group.micro_batches for group in unit)
        sentences.append(text + (f"; {micro} micro-batches in flight." if micro > 1 else "."))
    return " ".join(sentences)


def _gpus(scenario: Scenario, group: Group) -> str:
    pool = scenario.pools[group.pool]
    named = f" of pool {pool.name}" if len(scenario.pools) > 1 else ""
    return f"{group.gpus} {pool.accelerator.name} GPU{'s' if group.gpus > 1 else ''}{named}"


def _cut_words(scenario: Scenario, group: Group) -> str:
    """How a group is cut, in brackets; empty for one GPU."""
    both = group.attention and group.ffn
    attention = _ways((("tensor", group.tp), ("data", group.dp), ("context", group.cp)))
    ffn = _ways((("tensor", group.moe_tp), ("expert", group.ep)))
    cuts = []
    if group.attention and attention:
        cuts.append(f"attention {attention}" if both else attention)
    if group.ffn and ffn:
        noun = "experts" if scenario.moe is not None else "FFN"
        cuts.append(f"{noun} {ffn}" if both else ffn)
    if group.redundant:
        cuts.append(f"{group.redundant} redundant experts")
    if group.expert_policy:
        cuts.append(_EXPERT_POLICY_WORDS[EXPERT_POLICIES[group.expert_policy]])
    if group.pp > 1:
        cuts.append(f"{group.pp} pipeline stages")
    return f" ({', '.join(cuts)})" if cuts else ""


def _ways(degrees: Sequence[tuple[str, int]]) -> str:
    return " × ".join(f"{name}-parallel {degree}" for name, degree in degrees if degree > 1)


def _cells_words(group: Group, phases_named: bool) -> str:
    """``attention``; with phases named ``decode attention``, ``prefill and decode FFN``."""
    by_side: dict[str, list[str]] = {}
    for cell in group.cells:
        by_side.setdefault(_SIDES[cell], []).append(PHASES[phase_of(cell)])
    if not phases_named:
        return " and ".join(by_side)
    both = {side for side, phases in by_side.items() if len(phases) == 2}
    if len(both) == len(by_side) == 2:
        return "attention and FFN of both phases"
    return " and ".join(
        f"{side} of both phases" if side in both else f"{phases[0]} {side}"
        for side, phases in by_side.items()
    )
