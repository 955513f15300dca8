"""Pieces of terminal output that commands share: the console, bars, and the card of one deployment."""

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from afd_dse.results.words import constraint, missed, number, percent

WIDTH = 100  # of what is not a terminal, and the most that a line of ours needs
_WIDEST = 140
# Terms of memory: character (so that a bar reads without colour), style, word.
_MEMORY = (
    ("weights", "█", "blue", "weights"),
    ("kv_cache", "▓", "green", "KV cache"),
    ("activations", "▒", "yellow", "activations"),
    ("framework", "▒", "magenta", "other"),
)
_BAR = 32
_STEP = (
    ("attention_ms", "green", "attention"),
    ("ffn_ms", "blue", "FFN"),
    ("links_ms", "yellow", "links"),
    ("outside_ms", "magenta", "outside layers"),
)
_LIMITS = (
    ("TTFT", "ttft_percentile_ms"),
    ("TPOT", "tpot_ms"),
    ("request latency", "request_latency_ms"),
)
INDENT = 2


def console() -> Console:
    """Console on stdout: as wide as the terminal, 100 columns where there is none."""
    if sys.stdout.isatty():
        found = Console(highlight=False)
        found.width = min(found.width, _WIDEST)
        return found
    return Console(highlight=False, width=int(os.environ.get("COLUMNS") or WIDTH))


def heading(out: Console, text: str, aside: str = "") -> None:
    """A section heading with an optional remark."""
    out.print()
    out.print(Text(text, style="bold") + Text(f"  {aside}" if aside else "", style="dim"))


def plain_table(*columns: str, right: Sequence[str] = (), header: bool = True) -> Table:
    """A table without lines; ``right`` names the columns of numbers."""
    table = Table(
        box=box.SIMPLE_HEAD if header else None, show_header=header, pad_edge=False, padding=(0, 2, 0, 0)
    )
    table.show_edge = False
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name in right)
    return table


def paragraph(out: Console, text: str | Text, indent: int = INDENT) -> None:
    """A paragraph, indented."""
    out.print(Padding(text, (0, 0, 0, indent), expand=False))


def facts(out: Console, rows: Sequence[tuple[str, str | Text]]) -> None:
    """Lines of ``name  text``, the text wrapped beside its name."""
    table = plain_table("", "", header=False)
    table.columns[0].style = "dim"
    table.columns[0].no_wrap = True
    for name, text in rows:
        table.add_row(name, text)
    out.print(Padding(table, (0, 0, 0, INDENT)))


def deployment_card(
    out: Console, d: Mapping[str, Any], slo: Mapping[str, Any], more: Sequence[tuple[str, str | Text]] = ()
) -> None:
    """Everything about one deployment: words, groups with memory, numbers, limits, time, trust, and ``more`` lines."""
    for sentence in d["description"].removesuffix(".").split(". "):
        paragraph(out, f"{sentence}.")
    out.print()
    out.print(Padding(_groups(d["groups"]), (0, 0, 0, INDENT)))
    out.print()
    facts(out, [*_card_rows(d, slo), *more])


def _groups(groups: Sequence[Mapping[str, Any]]) -> Table:
    budgets = {number(g["memory_gib"]["budget"]) for g in groups}
    title = f"memory of a GPU, of {budgets.pop()} GiB" if len(budgets) == 1 else "memory of a GPU"
    several = len({g["pool"] for g in groups}) > 1
    names = ["group", "GPUs", "cut", "batch", title]
    table = plain_table(*names[:1], *(["pool"] if several else []), *names[1:], right=("batch",))
    for g in groups:
        batch = "–" if g["batch_size"] is None else number(g["batch_size"])
        gpus = f"{g['replicas']} × {g['gpus']}" if g["replicas"] > 1 else f"{g['gpus']}"
        cells = " ".join(g["cells"])
        table.add_row(
            cells, *([g["pool"]] if several else []), gpus, g["label"], batch, memory_bar(g["memory_gib"])
        )
    return table


def memory_bar(memory: Mapping[str, float]) -> Text:
    """Shares of the budget as a bar, then the terms in numbers."""
    budget, total = memory["budget"], memory["total"]
    scale = _BAR / max(budget, total)
    bar, done, edge = Text(), 0.0, 0
    for key, char, style, _ in _MEMORY:
        done += memory[key] * scale
        bar.append(char * (round(done) - edge), style)
        edge = round(done)
    bar.append("·" * (_BAR - edge), "dim")
    bar.append(f" {percent(total / budget)}", "bold red" if total > budget else "bold")
    words = ", ".join(f"{word} {memory[key]:.1f}" for key, _, _, word in _MEMORY if memory[key] >= 0.05)
    bar.append(f"\n{words}", "dim")
    return bar


def _card_rows(d: Mapping[str, Any], slo: Mapping[str, Any]) -> Iterator[tuple[str, str | Text]]:
    yield (
        "speed",
        f"{number(d['tokens_per_s_per_gpu'])} tokens/s per GPU, {number(d['tokens_per_s_per_user'])} tokens/s per "
        f"user, {number(d['tokens_per_s'])} tokens/s in all",
    )
    yield (
        "load",
        f"{number(d['requests_per_s'])} requests/s, {number(d['concurrency'])} in flight; "
        f"prefill used to {percent(d['prefill_utilization'])}",
    )
    yield (
        "cost",
        f"${number(d['usd_per_mtok'])} per million tokens, {number(d['joules_per_token'])} J per token",
    )
    yield "limits", limits_text(d, slo)
    yield from time_rows(d)
    if d["intervals"]:
        yield "certainty", certainty_text(d, slo)
    yield "trust", trust_text(d["provenance"])


def limits_text(d: Mapping[str, Any], slo: Mapping[str, Any]) -> Text:
    """What each limit is, how much of it is left, and which one binds; of a broken deployment what breaks it."""
    text = Text()
    if d["reason"]:
        text.append(f"✗ {d['reason']}", "red")
        text.append("\n")
    bound = d["binding"]["constraint"] if d["binding"] else None
    parts: list[Text] = []
    for name, slack in sorted(d["slack"].items(), key=lambda item: item[1]):
        key = dict(_LIMITS).get(name)
        limit = slo.get(f"{name.replace(' ', '_').lower()}_ms")
        words = constraint(name)
        shown = f"{words} {number(d[key])} of {limit:,g} ms" if key and limit else words
        left = "at the limit"
        if abs(slack) > 0.05:
            left = missed(slack / 100.0) if slack < 0.0 else f"{percent(slack / 100.0)} left"
        mark = name == bound
        parts.append(Text(f"{shown} ({left}{', binds' if mark else ''})", "bold" if mark else ""))
    return text + Text(", ").join(parts)


def time_rows(d: Mapping[str, Any]) -> Iterator[tuple[str, str | Text]]:
    """A decode step as a bar with its parts, and what TTFT is made of."""
    decode, prefill = d["breakdown"]["decode"], d["breakdown"]["prefill"]
    busy = [(word, style, decode[key]) for key, style, word in _STEP if decode[key]]
    total = sum(value for _, _, value in busy)
    text = Text(f"{number(decode['step_ms'])} ms: ")
    for index, (word, style, value) in enumerate(busy):
        text.append(", " if index else "")
        text.append("■ ", style)
        text.append(f"{word} {number(value)} ms")
    if total > decode["step_ms"] * 1.005:
        text.append("; they overlap")
    if decode["bubble_ms"] and decode["bubble_ms"] > 0.005 * decode["step_ms"]:
        text.append(f"; the busiest GPUs wait {number(decode['bubble_ms'])} ms")
    if decode["interference_ms"] and decode["interference_ms"] > 0.005 * decode["step_ms"]:
        text.append(f"; prefill adds {number(decode['interference_ms'])} ms on average")
    yield "decode step", text
    parts = [f"waiting {number(prefill['wait_ms'])}", f"prefill {number(prefill['service_ms'])}"]
    if prefill["kv_transfer_ms"]:
        exposed = (d["ttft_ms"] or math.inf) - (prefill["wait_ms"] or math.inf) - prefill["service_ms"]
        hidden = not exposed > 0.005 * prefill["service_ms"]
        parts.append("KV transfer (hidden)" if hidden else f"KV transfer {number(exposed)}")
    yield "first token", f"{number(d['ttft_ms'])} ms: {' + '.join(parts)}"


def certainty_text(d: Mapping[str, Any], slo: Mapping[str, Any]) -> str:
    """What 90 % of measured runs would lie in, and how probably the limits hold."""
    titles = {"tpot_ms": "TPOT", "ttft_ms": "TTFT", "tokens_per_s_per_gpu": "tokens/s per GPU"}
    ranges = [
        f"{title} {number(ends[0])} to {number(ends[1])}{' ms' if name.endswith('ms') else ''}"
        for name, title in titles.items()
        if (ends := d["intervals"][name])
    ]
    limited = any(slo.get(name) for name in ("ttft_ms", "tpot_ms", "request_latency_ms"))
    kept = f"; all limits hold with {percent(d['slo_probability'])} probability or more" if limited else ""
    return f"90 % of measured runs would show {', '.join(ranges)}{kept}"


def trust_text(shares: Mapping[str, float]) -> Text:
    """Which share of the time is measured, interpolated, borrowed, or speed of light."""
    known = (
        ("measured", "green"),
        ("interpolated", "green"),
        ("borrowed", "yellow"),
        ("speed_of_light", "yellow"),
    )
    parts = [
        Text(f"{percent(shares[name])} {name.replace('_', ' ')}", style)
        for name, style in known
        if shares[name] >= 5e-4
    ]
    return Text(", ").join(parts)
