"""What is proven of an answer: exact over so many layouts, exact but for named shortcuts, or sampled; and in words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from afd_dse.cost.scenario import Scenario
from afd_dse.search.descent import DIP, TPOT_MARGIN
from afd_dse.search.objective import Objective
from afd_dse.search.sides import LATENCY_SHARES
from afd_dse.spec.cells import Partition

Kind = Literal["exact", "bounded", "sampled"]
# From the strongest to the weakest; the whole answer is as strong as its weakest mode.
KINDS: tuple[Kind, ...] = ("exact", "bounded", "sampled")
# Below this a count is written out rather than as a power of ten.
_WRITTEN_OUT = 10_000
# What an enumeration takes for granted where it leaves layouts out.
ASSUMES_JOINT = (
    f"a layout whose memory is full, or whose TPOT is more than {TPOT_MARGIN:.0%} over its limit, does not become "
    f"feasible under a larger load; between two batches TPOT falls by {DIP:.0%} at most"
)
ASSUMES_PAIRED = f"between two batches TPOT falls by {DIP:.0%} at most"
_SPLIT = (
    f"the limit on request latency couples the phases; it was split at {len(LATENCY_SHARES)} shares and the best "
    "pairs were refined"
)
_IN_FLIGHT = (
    "the limit on requests in flight depends on the wait; loads and replicas were fitted to it after choosing"
)
_FEWER = (
    "replicas between those that the rate needs and all that fit were tried for the best layouts only, "
    "though the wait depends on them"
)


@dataclass(frozen=True, slots=True)
class Proof:
    """What a search has shown for one mode, or for all of them.

    ``kind``: ``exact`` (nothing in the space beats the answer, under ``assumes``), ``bounded`` (enumerated, but ``why``
    names where a shortcut may have lost something), ``sampled`` (``why`` says why it was not enumerated).
    ``considered`` deployments are what that is said of, ``evaluated`` how many of them were computed.
    """

    kind: Kind
    considered: int
    evaluated: int
    why: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """``exact over N = 10^8.2 layouts, 119,339 evaluated``; of the other kinds which one, and why."""
        return self.said()

    def said(self, where: str = "") -> str:
        """The words with ``where`` (``in 6 of 8 modes``) behind the size of the space."""
        if not self.considered:
            return f"no layout to search{where}"
        over = {"exact": "exact over", "bounded": "enumerated over", "sampled": "sampled from"}[self.kind]
        text = f"{over} N = {power(self.considered)} layouts{where}, {self.evaluated:,} evaluated"
        if self.evaluated > self.considered:
            text += ", loads between those listed included"
        return f"{text}; not proven: {'; '.join(self.why)}" if self.why else text


def power(count: float) -> str:
    """A count as a power of ten, ``10^8.2``; small ones written out."""
    return f"{count:,.0f}" if count < _WRITTEN_OUT else f"10^{math.log10(count):.1f}"


def enumerated(
    scenario: Scenario, partition: Partition, objective: Objective, considered: int, evaluated: int
) -> Proof:
    """What enumerating ``partition`` shows: exact, or the limits of the job that are met by shortcuts."""
    slo, workload = scenario.slo, scenario.workload
    why: list[str] = []
    if not partition.is_joint and np.isfinite(slo.latency_s) and workload.osl > 1.0:
        why.append(_SPLIT)
    if np.isfinite(workload.concurrency_limit):
        why.append(_IN_FLIGHT)
    waits = np.isfinite(slo.ttft_s) or np.isfinite(slo.latency_s)
    if partition.is_joint and objective == "fewest_gpus" and workload.requests_per_s and waits:
        why.append(_FEWER)
    assumes = ASSUMES_JOINT if partition.is_joint else ASSUMES_PAIRED
    return Proof("bounded" if why else "exact", considered, evaluated, tuple(why), (assumes,))


def sampled(considered: int, evaluated: int, rows: int, most: int) -> Proof:
    """What sampling shows; ``rows`` are the evaluations of an enumeration, of which ``most`` are admitted."""
    why = (
        f"enumerating takes {rows:,} evaluations, more than {most:,}"
        if rows > most
        else "sampling was asked for"
    )
    return Proof("sampled", considered, evaluated, (why,))


def of_all(proofs: Sequence[Proof]) -> Proof:
    """The proof of the whole answer: as strong as the weakest mode's."""
    weakest = max((KINDS.index(proof.kind) for proof in proofs), default=0)
    return Proof(
        KINDS[weakest],
        sum(proof.considered for proof in proofs),
        sum(proof.evaluated for proof in proofs),
        tuple(dict.fromkeys(reason for proof in proofs for reason in proof.why)),
        tuple(dict.fromkeys(reason for proof in proofs for reason in proof.assumes)),
    )


def explained(names: Sequence[str], proofs: Sequence[Proof]) -> list[str]:
    """The whole answer in words: one phrase for the exact modes, and of each other one how far it is shown and why."""
    exact = [proof for proof in proofs if proof.kind == "exact"]
    if len(exact) == len(proofs):
        return [of_all(proofs).words]
    parts = [of_all(exact).said(f" in {len(exact)} of {len(proofs)} modes")] if exact else []
    return parts + [
        f"{name}: {proof.words}" for name, proof in zip(names, proofs, strict=True) if proof.kind != "exact"
    ]


__all__ = ["KINDS", "Kind", "Proof", "enumerated", "explained", "of_all", "power", "sampled"]
