"""The page of a fleet: the split in numbers and words, the models side by side, their staircases, what is exact."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from afd_dse.report.capacity import Executive, rendered
from afd_dse.report.capacity_cards import given
from afd_dse.report.cards import Card, Cell, Chart, Table
from afd_dse.report.figures.fleet import staircases_figure
from afd_dse.results.asked import pools_text
from afd_dse.results.words import constraint, count, number, percent

OBJECTIVES = {
    "fewest_gpus": "fewest GPUs that meet all demands",
    "usd_per_hour": "least cost that meets all demands",
    "growth": "largest factor by which all demands can grow",
    "weighted_throughput": "most tokens/s, each times its model's weight",
}
"""What the objectives of a fleet mean."""


def fleet_page(document: Mapping[str, Any]) -> str:
    """The page as one HTML file that needs no network."""
    answer = executive(document)
    cards = (_staircases(document), _deployments(document), _exact(document), _file(document))
    return rendered(f"Fleet: {answer.title}", answer, (_shares(document),), cards)


def models_words(document: Mapping[str, Any]) -> str:
    """``3 models``."""
    number_of = len(document["models"])
    return f"{number_of} model{'s' * (number_of != 1)}"


def executive(document: Mapping[str, Any]) -> Executive:
    """The answer in numbers and words."""
    models = document["models"]
    asked = (
        f"{models_words(document)} on {pools_text(document['fleet'])}; {OBJECTIVES[document['objective']]}"
    )
    have = sum(pool["count"] for pool in document["gpus_by_pool"].values())
    tiles = (
        (f"{document['gpus']} of {have}", "GPUs in use"),
        (f"${number(document['usd_per_hour'])}", "per hour"),
        (number(document["tokens_per_s"]), "output tokens/s that they can serve"),
        *([(percent(document["growth"]), "of every demand at most")] if document["growth"] else []),
    )
    facts = tuple(
        (model["name"], f"{_gpus_words(document, model)}: {d['label']} ({d['mode']})")
        for model in models
        if (d := model["deployment"]) is not None
    )
    title = f"{document['gpus']} of {have} GPUs serve {len(facts)} model{'s' * (len(facts) != 1)}"
    if not document["feasible"]:
        title = "These demands cannot be met"
    why = () if document["feasible"] else (document["reason"],)
    return Executive(asked, title, tiles, facts, warnings=(*why, *document["warnings"]))


def _gpus_words(document: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    several = len(document["gpus_by_pool"]) > 1
    parts = [
        f"{gpus} GPUs of {name}" if several else f"{gpus} GPUs"
        for name, gpus in model["gpus_by_pool"].items()
        if gpus
    ]
    return " and ".join(parts)


def _shares(document: Mapping[str, Any]) -> Card:
    pools = list(document["gpus_by_pool"])
    sizes = ["GPUs"] if len(pools) == 1 else [f"GPUs of {name}" for name in pools]
    names = (
        "mode",
        "deployment",
        "serves req/s",
        "asked req/s",
        "load",
        "tokens/s per GPU",
        "TTFT ms",
        "TPOT ms",
    )
    head = ("model", *sizes, *names, "limited by")
    rows, dim = [], set()
    for place, model in enumerate(document["models"]):
        d = model["deployment"]
        texts = [model["name"], *(str(model["gpus_by_pool"][name]) for name in pools)]
        asked = "–" if model["demand"] is None else number(model["demand"]["requests_per_s"])
        if d is None:
            dim.add(place)
            why = "" if model["steps"] else "no deployment meets its SLO"
            texts += ["–", "none", "0", asked, "", "", "", "", why]
        else:
            texts += [d["mode"], d["label"], number(d["requests_per_s"]), asked]
            texts += [
                "–" if model["load"] is None else percent(model["load"]),
                number(d["tokens_per_s_per_gpu"]),
            ]
            texts += [number(d["ttft_percentile_ms"]), number(d["tpot_ms"])]
            texts += [constraint(d["binding"]["constraint"]) if d["binding"] else "nothing"]
        words = (0, len(sizes) + 1, len(sizes) + 2, len(texts) - 1)
        rows.append(tuple(Cell(text, number=column not in words) for column, text in enumerate(texts)))
    table = Table("shares", head, tuple(rows), dim=frozenset(dim))
    title = "What each model gets" if document["feasible"] else "What the cluster serves at best"
    return Card("shares", title, table=table)


def _staircases(document: Mapping[str, Any]) -> Card:
    if not any(model["steps"] for model in document["models"]):
        return Card(
            "staircases", "What other shares would serve", nothing="no deployment of any model meets its SLO"
        )
    alt = "For each model the largest rate within its SLO over the number of GPUs, and its share"
    lead = "Each line is a model: the most that its best deployment serves on so many GPUs. Stars are the shares."
    if len(document["gpus_by_pool"]) > 1:
        lead += " GPUs are those of all pools together, at their best mix: a share of another mix lies below its line."
    chart = Chart("staircases", alt, {"": staircases_figure(document)})
    return Card("staircases", "What other shares would serve", lead, (chart,))


def _deployments(document: Mapping[str, Any]) -> Card:
    items = tuple(
        f"{model['name']}: {model['deployment']['description']}"
        for model in document["models"]
        if model["deployment"] is not None
    )
    nothing = "" if items else "no model gets GPUs"
    text = "A folder beside this page holds each model's job, result and report."
    return Card("deployments", "Deployments", items=items, text=text if items else "", nothing=nothing)


def _exact(document: Mapping[str, Any]) -> Card:
    return Card("exact", "What is exact", items=tuple(_exact_words(document)))


def _exact_words(document: Mapping[str, Any]) -> Iterator[str]:
    yield document["explanation"]
    yield (
        f"{count(document['considered'])} deployments considered, {count(document['evaluated'])} evaluated in "
        f"{document['search_seconds']:.1f} s"
    )
    for model in document["models"]:
        yield f"{model['name']}: {model['explanation']}"
        yield from (f"{model['name']}: {warning}" for warning in model["warnings"])


def _file(document: Mapping[str, Any]) -> Card:
    text = yaml.safe_dump(
        given(document["fleet"]), sort_keys=False, allow_unicode=True, default_flow_style=None
    )
    return Card("demand", "The fleet as it was read", text=text)
