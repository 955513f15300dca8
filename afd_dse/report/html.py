"""The report page: one file that needs no network; the answer first, then a card for each question."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

import plotly.io
from plotly.offline import get_plotlyjs

from afd_dse.report.figures import (
    NothingToShowError,
    front_figure,
    front_info,
    mode_colours,
    modes_figure,
    modes_info,
    step_figure,
    step_info,
)
from afd_dse.results.result import headline
from afd_dse.results.words import constraint, count, number, parameters, percent

DATA_ID = "result"
"""Id of the element that holds the result's document as JSON."""
_MEMORY = (
    ("weights", "weights", "#0072B2"),
    ("kv_cache", "KV cache", "#009E73"),
    ("activations", "activations", "#E69F00"),
    ("framework", "framework", "#999999"),
)
_TRUST = (
    ("measured", "measured at this very point", "#009E73"),
    ("interpolated", "between or beyond measured points of this kernel", "#56B4E9"),
    ("borrowed", "efficiency of a related kernel or accelerator", "#E69F00"),
    ("speed_of_light", "from peak rates and bandwidths only", "#D55E00"),
)
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 0 auto; max-width: 1080px;
  padding: 24px 16px 48px; }
h1 { font-size: 28px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 19px; margin: 0 0 8px; }
section { border-top: 1px solid #ddd; padding: 20px 0 8px; }
.dim { color: #666; }
.numbers { display: flex; flex-wrap: wrap; gap: 12px 36px; margin: 16px 0; }
.numbers b { display: block; font-size: 24px; line-height: 1.2; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid #eee; vertical-align: top; }
th { color: #666; font-weight: 600; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
tr.best td { font-weight: 600; background: #f1f8f4; }
tr.no td { color: #777; }
.bar { display: flex; height: 14px; background: #eee; min-width: 220px; overflow: hidden; border-radius: 2px; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px; }
.why { color: #a33; }
.scroll { overflow-x: auto; }
pre { overflow: auto; max-height: 420px; background: #f7f7f7; padding: 12px; font-size: 12px; }
"""


class Markup(str):
    """Text that is HTML already; everything else is escaped."""

    __slots__ = ()


Card = tuple[str, Callable[[Mapping[str, Any]], Markup]]


def page(document: Mapping[str, Any]) -> str:
    """The page of a result's document. A card that has nothing to show says why."""
    sections = "".join(_section(title, card, document) for title, card in _CARDS)
    title = escape(f"{document['model']['name']}: {headline(document)}")
    # NOTE: "<" is escaped so that no text of the job can end the element that holds the data.
    data = json.dumps(document, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style>"
        f"<script>{get_plotlyjs()}</script></head><body>\n"
        f"{_answer(document)}\n{sections}"
        f'<script type="application/json" id="{DATA_ID}">{data}</script>\n</body></html>\n'
    )


def _section(title: str, card: Callable[[Mapping[str, Any]], Markup], document: Mapping[str, Any]) -> str:
    try:
        body = card(document)
    except NothingToShowError as nothing:
        body = _html("<p class='dim'>Nothing to show: {}.</p>", str(nothing))
    return _html("<section><h2>{}</h2>{}</section>\n", title, body)


def _html(template: str, *values: object) -> Markup:
    """Fill ``{}`` of a template; text is escaped, :class:`Markup` is not."""
    return Markup(template.format(*(v if isinstance(v, Markup) else escape(str(v)) for v in values)))


def _join(parts: Iterable[Markup]) -> Markup:
    return Markup("".join(parts))


def _table(
    head: Sequence[str], rows: Iterable[Sequence[object]], numeric: int, classes: Sequence[str] = ()
) -> Markup:
    """A table; cells from the second to the ``numeric``-th from there are numbers, right-aligned."""

    def cells(tag: str, values: Sequence[object], first: int) -> Markup:
        return _join(
            _html(f"<{tag}{' class=n' if first <= i < first + numeric else ''}>{{}}</{tag}>", value)
            for i, value in enumerate(values)
        )

    start = next((i for i, name in enumerate(head) if name.startswith("#")), len(head))
    names = [name.removeprefix("#") for name in head]
    body = []
    for index, row in enumerate(rows):
        cls = classes[index] if index < len(classes) else ""
        body.append(_html("<tr class='{}'>{}</tr>", cls, cells("td", row, start)))
    return _html(
        "<div class=scroll><table><tr>{}</tr>{}</table></div>", cells("th", names, start), _join(body)
    )


def _bar(parts: Iterable[tuple[float, str]]) -> Markup:
    """A bar of coloured shares of its width."""
    spans = (
        _html("<span style='width:{}%;background:{}'></span>", f"{100 * share:.2f}", c) for share, c in parts
    )
    return _html("<div class=bar>{}</div>", _join(spans))


def _dot(colour: str, text: str) -> Markup:
    """A text with the colour that it has in the charts."""
    return _html("<span class=dot style='background:{}'></span>{}", colour, text)


def _answer(document: Mapping[str, Any]) -> Markup:
    best, job = document["best"], document["job"]
    pools = ", ".join(f"{pool['count']} GPUs in pool {pool['name']}" for pool in job["cluster"]["pools"])
    asked = _html(
        "<p class=dim>{} on {}, kernels of {}</p>", document["model"]["name"], pools, job["framework"]
    )
    if best is None:
        why = (
            document["nearest_misses"][-1]["reason"]
            if document["nearest_misses"]
            else "no layout fits the cluster"
        )
        text = "<header><h1>No deployment meets the limits</h1>{}<p class=why>Nearest miss: {}.</p></header>"
        return _html(text, asked, why)
    facts = (
        (number(best["tokens_per_s_per_gpu"]), "tokens/s per GPU"),
        (number(best["tokens_per_s_per_user"]), "tokens/s per user"),
        (f"{number(best['ttft_percentile_ms'])} ms", "TTFT"),
        (f"{number(best['tpot_ms'])} ms", "TPOT"),
        (f"{best['gpus']}", "GPUs"),
        (f"${number(best['usd_per_mtok'])}", "per million tokens"),
    )
    numbers = _join(_html("<div><b>{}</b>{}</div>", value, name) for value, name in facts)
    return _html(
        "<header><h1>{} <span class=dim>{}</span></h1>{}<p>{}</p><div class=numbers>{}</div></header>",
        best["label"],
        best["mode"],
        asked,
        best["description"],
        numbers,
    )


def _groups(document: Mapping[str, Any]) -> Markup:
    best = document["best"]
    if best is None:
        raise NothingToShowError("no deployment is feasible")
    rows = []
    for group in best["groups"]:
        memory = group["memory_gib"]
        bar = _bar((memory[key] / memory["budget"], colour) for key, _, colour in _MEMORY)
        terms = ", ".join(f"{word} {memory[key]:.1f}" for key, word, _ in _MEMORY)
        cell = _html(
            "{}{} of {} GiB <span class=dim>({})</span>",
            bar,
            f"{memory['total']:.1f}",
            f"{memory['budget']:.1f}",
            terms,
        )
        gpus = f"{group['replicas']} × {group['gpus']}"
        batch = "–" if group["batch_size"] is None else number(group["batch_size"])
        cells = " ".join(group["cells"])
        rows.append((cells, f"{group['accelerator']} ({group['pool']})", group["label"], gpus, batch, cell))
    legend = _join(
        _html("<span class=dot style='background:{}'></span>{} &nbsp; ", c, word) for _, word, c in _MEMORY
    )
    head = ("group", "accelerator", "cut", "#GPUs", "#batch per rank", "memory of a GPU")
    return _html("{}<p class=dim>{}</p>", _table(head, rows, 2), legend)


def _modes(document: Mapping[str, Any]) -> Markup:
    colours, best = mode_colours(document), document["best"]
    rows, classes = [], []
    for entry in document["modes"]:
        d = document["best_per_mode"][entry["name"]]
        name = _dot(colours[entry["name"]], entry["name"])
        bound = d["binding"]["constraint"] if d.get("binding") else ""
        why = entry["reason"] or f"the best; limited by {constraint(bound) or 'nothing'}"
        if entry["status"] == "no_layout":
            rows.append((name, "", "", "", "", "", "", "", why))
        else:
            keys = (
                "tokens_per_s_per_gpu",
                "tokens_per_s_per_user",
                "ttft_percentile_ms",
                "tpot_ms",
                "usd_per_mtok",
            )
            rows.append((name, d["label"], d["gpus"], *(number(d[key]) for key in keys), why))
        winner = best is not None and best["mode"] == entry["name"]
        classes.append("best" if winner else "" if entry["status"] == "feasible" else "no")
    head = (
        "mode",
        "deployment",
        "#GPUs",
        "tokens/s per GPU",
        "tokens/s per user",
        "TTFT ms",
        "TPOT ms",
        "$/Mtok",
        "why it is not the answer",
    )
    table = _table(head, rows, 6, classes)
    if best is None:
        return _html("<p class=dim>Each row is the mode's nearest miss.</p>{}", table)
    return _html("{}{}", _figure(modes_figure(modes_info(document))), table)


def _front(document: Mapping[str, Any]) -> Markup:
    return _figure(front_figure(front_info(document)))


def _step(document: Mapping[str, Any]) -> Markup:
    note = "Work of a station in one decode step of each mode's best deployment. What lies beyond the diamond overlaps."
    return _html("<p class=dim>{}</p>{}", note, _figure(step_figure(step_info(document))))


def _figure(figure: Any) -> Markup:
    config = {"displaylogo": False, "responsive": True}
    return Markup(plotly.io.to_html(figure, include_plotlyjs=False, full_html=False, config=config))


def _limits(document: Mapping[str, Any]) -> Markup:
    best = document["best"]
    if best is None:
        raise NothingToShowError("no deployment is feasible")
    bound = best["binding"]["constraint"] if best["binding"] else None
    ordered = sorted(best["slack"].items(), key=lambda item: item[1])
    rows = [
        (constraint(name), percent(slack / 100.0), "binds" if name == bound else "")
        for name, slack in ordered
    ]
    return _table(
        ("limit", "#left of it", ""), rows, 1, ["best" if name == bound else "" for name, _ in ordered]
    )


def _trust(document: Mapping[str, Any]) -> Markup:
    shares = document["provenance"]
    if "measured" not in shares:
        raise NothingToShowError("no deployment was evaluated")
    bar = _join(
        _html("<span style='width:{}%;background:{}'></span>", f"{100 * shares[key]:.2f}", colour)
        for key, _, colour in _TRUST
    )
    rows = [
        (
            _html("<span class=dot style='background:{}'></span>{}", c, key.replace("_", " ")),
            percent(shares[key]),
            words,
        )
        for key, words, c in _TRUST
    ]
    tables = shares["operator_db"]
    source = f"Tables of {tables['name']} {tables['version']} ({tables['licence']})."
    table = _table(("origin of the time", "#share", "meaning"), rows, 1)
    return _html("{}{}<p class=dim>{}</p>", bar, table, source)


def _misses(document: Mapping[str, Any]) -> Markup:
    misses = document["nearest_misses"]
    if not misses:
        raise NothingToShowError(
            "the job has feasible deployments" if document["best"] else "no layout exists"
        )
    rows = [(constraint(d["constraint"]), d["mode"], d["label"], d["reason"]) for d in misses]
    return _table(("breaks only", "mode", "deployment", "by how much"), rows, 0)


def _job(document: Mapping[str, Any]) -> Markup:
    model = document["model"]
    size = f"{parameters(model['parameters'])} parameters, {parameters(model['active_parameters'])} active"
    rows = [
        ("model", f"{model['name']}: {size}; {'; '.join(model['kinds'])}"),
        ("data types", ", ".join(f"{role} {dtype}" for role, dtype in model["quantization"].items())),
        (
            "search",
            f"{count(document['considered'])} considered, {count(document['evaluated'])} evaluated in "
            f"{document['search_seconds']:.1f} s; {document['explanation']}",
        ),
    ]
    job = json.dumps(document["job"], indent=1, ensure_ascii=False)
    warnings = _join(_html("<li>{}</li>", text) for text in document["warnings"])
    return _html(
        "<ul>{}</ul>{}<details><summary>job</summary><pre>{}</pre></details>",
        warnings,
        _table(("", ""), rows, 0),
        job,
    )


_CARDS: tuple[Card, ...] = (
    ("Groups and memory", _groups),
    ("Throughput against speed", _front),
    ("Modes compared", _modes),
    ("Nearest misses", _misses),
    ("Where a decode step goes", _step),
    ("What limits the answer", _limits),
    ("How far to trust it", _trust),
    ("The job", _job),
)
