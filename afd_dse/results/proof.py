"""What is proven of a result, as data beside the words, and read back from results of any version."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from afd_dse.results.words import count
from afd_dse.search.proof import KINDS, Proof, explained, of_all, power


def proof_of(proof: Proof) -> dict[str, Any]:
    """The ``proof`` of one mode's entry."""
    return {
        "kind": proof.kind,
        "considered": proof.considered,
        "considered_log10": math.log10(proof.considered) if proof.considered else None,
        "evaluated": proof.evaluated,
        "why": list(proof.why),
        "assumes": list(proof.assumes),
        "words": proof.words,
    }


def proof_from(entry: Mapping[str, Any]) -> Proof:
    """The proof whose document :func:`proof_of` gives."""
    return Proof(
        entry["kind"], entry["considered"], entry["evaluated"], tuple(entry["why"]), tuple(entry["assumes"])
    )


def proof_of_all(names: Sequence[str], proofs: Sequence[Proof], also: Sequence[str] = ()) -> dict[str, Any]:
    """The same of the whole answer, as strong as its weakest mode's, with the ``names`` of the modes of each kind.

    ``also`` is said behind what is said of the modes.
    """
    of_kind = {
        kind: [name for name, proof in zip(names, proofs, strict=True) if proof.kind == kind]
        for kind in KINDS
    }
    parts = [*explained(names, proofs), *also]
    return proof_of(of_all(proofs)) | {"modes": of_kind, "words": "; ".join(parts), "parts": parts}


def proof_parts(document: Mapping[str, Any]) -> list[str]:
    """What is proven of a result's document, one phrase for all exact modes and one for each other.

    Documents without ``proof`` are of versions that told it in one sentence.
    """
    found = document.get("proof")
    return [str(document["explanation"])] if found is None else list(found["parts"])


def proof_short(entry: Mapping[str, Any]) -> str:
    """The same of one mode's entry in a few words, for tables: ``exact, N = 10^5.2``."""
    found = entry.get("proof")
    if found is None:
        return str(entry["method"])
    if not found["considered"]:
        return "nothing to search"
    # What belongs together stays on one line of a narrow column.
    return f"{found['kind']}, N\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{power(found['considered'])}"


def effort(document: Mapping[str, Any]) -> str:
    """How much was computed: ``24,953 of 773,008 deployments evaluated in 2.1 s``."""
    considered, evaluated = document["considered"], document["evaluated"]
    of = f" of {count(considered)}" if considered >= evaluated else ""
    return f"{count(evaluated)}{of} deployments evaluated in {document['search_seconds']:.1f} s"


__all__ = ["effort", "proof_from", "proof_of", "proof_of_all", "proof_parts", "proof_short"]
