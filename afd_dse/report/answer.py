"""The top of a report: what to deploy, what it achieves, why, how sure, and what would change it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from afd_dse.report.cards import intervals_of
from afd_dse.report.figures import NothingToShowError, sensitivity_info
from afd_dse.report.figures.theme import TRUST_COLOURS
from afd_dse.report.metrics import METRICS, OBJECTIVES
from afd_dse.results.asked import pools_text, slo_text, workload_text
from afd_dse.results.policies import RELEASED
from afd_dse.results.proof import proof_parts
from afd_dse.results.what_if import FIXED_LOAD
from afd_dse.results.words import constraint, number, percent, signed_percent

# How many changes the top of the page names.
_TELLING = 3
_FILES = "The command “launch” writes the files that start it."
# Less than this share of a limit is a rounding error.
_NOTHING = 1e-5


@dataclass(frozen=True, slots=True)
class Tile:
    """One number with its unit and, on hover, its definition."""

    value: str
    unit: str
    definition: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Sentences and numbers of the top; ``facts`` are (question, answer), ``shares`` (colour, share, words)."""

    asked: str
    title: str
    mode: str
    description: str
    tiles: tuple[Tile, ...]
    facts: tuple[tuple[str, str], ...]
    shares: tuple[tuple[str, float, str], ...]
    warnings: tuple[str, ...]
    feasible: bool


def answer_of(document: Mapping[str, Any]) -> Answer:
    """The top of the page for a result's document."""
    best = document["best"]
    if best is None:
        return _nothing(document)
    facts = [("Why this one", _why(document)), ("What binds", _binds(best)), ("How sure", _sure(document))]
    facts.append(("What is proven", proven(document)))
    if change := _changes(document):
        facts.append(("What would change it", change))
    facts.append(("Can it be launched", _launch(document)))
    return Answer(
        asked_words(document),
        best["label"],
        best["mode"],
        best["description"],
        _tiles(best),
        tuple(facts),
        shares_of(document),
        tuple(document["warnings"]),
        feasible=True,
    )


def _nothing(document: Mapping[str, Any]) -> Answer:
    misses = document["nearest_misses"]
    nearest = (
        f"{misses[-1]['label']} ({misses[-1]['mode']}): {misses[-1]['reason']}"
        if misses
        else "no layout fits"
    )
    return Answer(
        asked_words(document),
        "No deployment meets the limits",
        "",
        "",
        (),
        (("Nearest miss", f"{nearest}."), ("What is proven", proven(document))),
        (),
        tuple(document["warnings"]),
        feasible=False,
    )


def asked_words(document: Mapping[str, Any]) -> str:
    """Model, cluster, workload, limits in one line."""
    job = document["job"]
    where = f"{document['model']['name']} on {pools_text(job)} with {job['framework']}"
    # NOTE: stored results may be older than this choice.
    where += ", only what its release runs today" if job["search"].get("launchable") else ""
    return f"{where}; {workload_text(job['workload'], job['demand'])}; {slo_text(job['slo'])}"


def _tiles(best: Mapping[str, Any]) -> tuple[Tile, ...]:
    wanted = (
        ("tokens_per_s_per_gpu", "tokens/s per GPU"),
        ("tokens_per_s_per_user", "tokens/s per user"),
        ("ttft_percentile_ms", "ms TTFT"),
        ("tpot_ms", "ms TPOT"),
        ("gpus", "GPUs"),
        ("usd_per_mtok", "$ per Mtok out"),
        ("joules_per_token", "J per token"),
    )
    return tuple(
        Tile(f"{best[key]}" if key == "gpus" else number(best[key]), unit, METRICS[key].definition)
        for key, unit in wanted
    )


def _why(document: Mapping[str, Any]) -> str:
    best = document["best"]
    metric = OBJECTIVES[document["job"]["search"]["objective"]]
    others = [
        entry
        for entry in document["modes"]
        if entry["name"] != best["mode"] and entry["status"] == "feasible"
    ]
    if not others:
        return (
            "It is the only mode that meets the limits."
            if len(document["modes"]) > 1
            else "Its mode was asked for."
        )
    runner = min(
        others, key=lambda entry: -metric.better * document["best_per_mode"][entry["name"]][metric.name]
    )
    return (
        f"It is the best of {len(document['modes'])} modes by {metric.words}. Runner-up: {runner['name']} "
        f"with {document['best_per_mode'][runner['name']]['label']}, {runner['reason']}."
    )


def _binds(best: Mapping[str, Any]) -> str:
    if not best["binding"]:
        return "Nothing limits it."
    name, left = best["binding"]["constraint"], best["binding"]["slack_percent"] / 100.0
    ordered = sorted(best["slack"].items(), key=lambda item: item[1])
    # All GPUs in use is no limit that anyone comes close to.
    rest = [
        f"{constraint(other)} {percent(slack / 100.0)}"
        for other, slack in ordered
        if other not in (name, "gpus")
    ]
    more = f" Left of the next limits: {', '.join(rest[:3])}." if rest else ""
    rest_of_it = "nothing" if left < _NOTHING else percent(left)
    return f"{constraint(name)}, of which {rest_of_it} is left.{more}"


def _sure(document: Mapping[str, Any]) -> str:
    shares = document["provenance"]
    grounded = shares["measured"] + shares["interpolated"]
    text = f"{percent(grounded)} of the time rests on measurements of this kernel on this accelerator"
    if found := intervals_of(document["best"]):
        return f"{text}; {'; '.join(found)}."
    return f"{text}. The estimate is a model, not a measurement, and has no interval."


def proven(document: Mapping[str, Any]) -> str:
    """How far the search shows that nothing in the space is better, one sentence for each part."""
    first, *others = proof_parts(document)
    return " ".join([f"{first[:1].upper()}{first[1:]}.", *(f"{part}." for part in others)])


def _changes(document: Mapping[str, Any]) -> str:
    try:
        info = sensitivity_info(document)
    except NothingToShowError:
        return ""
    # What happens to the answer when only its batch changes is the table's business: nobody changes it from outside.
    rows = [
        row
        for row in zip(info.names, info.recommended, info.best_labels, strict=True)
        if not row[0].startswith(FIXED_LOAD)
    ]
    telling = [
        f"{name}: " + ("this layout is no longer feasible" if value is None else signed_percent(value))
        for name, value, _ in rows
        if value is None or abs(value) >= 0.005
    ][:_TELLING]
    best = document["best"]
    mine = f"{best['label']} ({best['mode']})"
    winners = sum(label not in ("", mine) for _, _, label in rows)
    other = f" Another layout would win under {winners} of {len(rows)} changes." if winners else ""
    if not telling:
        return "None of the changes tried matters." + other
    return f"Change of {info.metric.words}: {'; '.join(telling)}.{other}"


def _launch(document: Mapping[str, Any]) -> str:
    best, framework = document["best"], document["job"]["framework"]
    if best["launchable"] == RELEASED:
        return f"Yes: a release of {framework} runs {best['mode']}. {_FILES}"
    runs, other = document["best_launchable"], ""
    if runs is not None:
        other = f" Of what the search kept the best that can be launched is {runs['label']} ({runs['mode']})."
    if best["launchable"]:
        return f"With conditions: {best['launchable']}.{other} {_FILES}"
    better = "A search with search.launchable finds the best that it runs."
    return f"Not today: no release of {framework} runs {best['label']} ({best['mode']}).{other} {better}"


def shares_of(document: Mapping[str, Any]) -> tuple[tuple[str, float, str], ...]:
    """Provenance as (colour, share, words)."""
    shares = document["provenance"]
    return tuple((colour, shares[name.replace(" ", "_")], name) for name, colour in TRUST_COLOURS.items())
