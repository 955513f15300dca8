"""Where the engines of a plan run: nodes by address, and GPUs of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from afd_dse.errors import InputError, Problem
from afd_dse.launch.plan import Engine, Plan
from afd_dse.spec.document import read_text

_REMEDY = "give one address a line, after the name of the pool and a space where there are several"


@dataclass(frozen=True, slots=True)
class Place:
    """One engine: addresses of its nodes, GPUs that it takes of each, and how many engines lie before it there."""

    hosts: tuple[str, ...]
    gpus: tuple[int, ...]
    number: int

    def address(self, port: int) -> str:
        """Where the engine answers, if the first one on a node does at ``port``."""
        return f"{self.hosts[0]}:{port + self.number}"


def places_of(plan: Plan, hosts: Mapping[str, Sequence[str]] | None = None) -> dict[str, list[Place]]:
    """The places of all engines by role; no GPU is taken twice.

    ``hosts`` are addresses by pool, numbered names where None. Engines that fill nodes come first; several that fit
    into one share it. Raises :class:`InputError` where there are too few addresses.
    """
    found: dict[str, list[Place]] = {}
    nodes: dict[str, list[tuple[int, int]]] = {}  # of every pool GPUs taken and engines of each node
    for engine in sorted(plan.engines, key=lambda engine: -engine.gpus_per_node):
        taken = nodes.setdefault(engine.pool, [])
        found[engine.role] = [_next(engine, taken, hosts) for _ in range(engine.replicas)]
    return {engine.role: found[engine.role] for engine in plan.engines}


def _next(engine: Engine, nodes: list[tuple[int, int]], hosts: Mapping[str, Sequence[str]] | None) -> Place:
    need = engine.gpus_per_node
    free = [number for number, (taken, _) in enumerate(nodes) if taken + need <= engine.node_gpus]
    # An engine of several nodes takes the same GPUs on all of them: new ones are the same.
    chosen = free[:1] if engine.nodes == 1 and free else range(len(nodes), len(nodes) + engine.nodes)
    nodes += [(0, 0)] * (max(chosen) + 1 - len(nodes))
    first, number = nodes[chosen[0]]
    for node in chosen:
        nodes[node] = (first + need, number + 1)
    return Place(
        tuple(_address(engine.pool, node, hosts) for node in chosen),
        tuple(range(first, first + need)),
        number,
    )


def _address(pool: str, node: int, hosts: Mapping[str, Sequence[str]] | None) -> str:
    if hosts is None:
        return f"{pool}-{node}"
    known = hosts.get(pool, ())
    if node >= len(known):
        message = f"has {len(known)} addresses of pool {pool}, more are needed"
        raise InputError(Problem("--hosts", len(known), message, _REMEDY))
    return known[node]


def read_hosts(path: Path, pools: Sequence[str]) -> dict[str, list[str]]:
    """Addresses of nodes by pool: one a line, after the pool's name where there are several ``pools``.

    Raises :class:`InputError` for a file that cannot be read, and names every line that is not understood.
    """
    found: dict[str, list[str]] = {pool: [] for pool in pools}
    problems = []
    for number, line in enumerate(read_text(path, _REMEDY).splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        pool = pools[0] if len(pools) == 1 and len(words) == 1 else words[0]
        if pool not in found or len(words) > 2:
            problems.append(Problem(f"--hosts line {number}", line, "is not an address of a pool", _REMEDY))
            continue
        found[pool].append(words[-1])
    if problems:
        raise InputError(problems)
    return found
