"""What ``optimize`` prints: the job, the modes side by side, the recommended deployment, what to do next."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from afd_dse.cli.cards import INDENT, console, deployment_card, facts, heading, paragraph, plain_table
from afd_dse.results.asked import pools_text, slo_text, workload_text
from afd_dse.results.datatypes import plain_label
from afd_dse.results.proof import effort, proof_parts
from afd_dse.results.words import constraint, missed, not_run, number, parameters

_OBJECTIVES = {
    "throughput_per_gpu": ("most tokens/s per GPU", "tokens_per_s_per_gpu", -1),
    "total_throughput": ("most tokens/s", "tokens_per_s", -1),
    "usd_per_mtok": ("least cost per token", "usd_per_mtok", 1),
    "fewest_gpus": ("fewest GPUs", "gpus", 1),
}
_SMALLER_SPACES, _LARGEST_SPACE = ("quick", "default"), "wide"
_NOT_RUN = "°"
_NARROW = 90  # columns below which the table of modes leaves the cost to the card


def print_answer(
    document: Mapping[str, Any], *, job: str, written: Sequence[Path] = (), out: Console | None = None
) -> None:
    """Print the answer; ``job`` is how the user called the job file, ``written`` what has been written."""
    out = out or console()
    facts(out, list(_job_rows(document)))
    _print_modes(out, document)
    if document.get("data_types"):
        _print_types(out, document)
    best = document["best"]
    if best is None:
        _print_misses(out, document)
    else:
        heading(out, f"Recommended: {best['label']}", best["mode"])
        more = [("cluster", cluster_text(best, document["job"]))]
        deployment_card(out, best, document["job"]["slo"], more)
    if document["warnings"]:
        heading(out, "Bear in mind")
        for warning in document["warnings"]:
            paragraph(out, f"• {warning}")
    _print_next(out, document, job, written)


def _job_rows(document: Mapping[str, Any]) -> Iterator[tuple[str, str | Text]]:
    job, model = document["job"], document["model"]
    q = model["quantization"]
    size = parameters(model["parameters"])
    active = parameters(model["active_parameters"])
    shown = f"{size} parameters" if active == size else f"{size} parameters, {active} active"
    types = f"GEMM {q['gemm']}, experts {q['moe']}, attention {q['attention']}, KV {q['kv_cache']}"
    if active == size:
        types = f"GEMM {q['gemm']}, attention {q['attention']}, KV {q['kv_cache']}"
    drafts = job["speculative"]
    if drafts["draft_tokens"]:
        types += f"; {drafts['draft_tokens']} drafts, {drafts['accepted_tokens_per_step']:g} tokens a step"
    yield "model", Text(model["name"], "bold") + Text(f", {shown}; {types}")
    yield "cluster", f"{pools_text(job)}; kernels of {job['framework']}"
    yield "workload", workload_text(job["workload"], job["demand"])
    yield "SLO", slo_text(job["slo"])
    words = _OBJECTIVES[job["search"]["objective"]][0]
    # NOTE: stored results may be older than this choice.
    only = f" of what {job['framework']} runs today" if job["search"].get("launchable") else ""
    yield "search", f"{words}{only}; {effort(document)} ({document['method']})"
    yield "proof", "\n".join(proof_parts(document))


def _print_modes(out: Console, document: Mapping[str, Any]) -> None:
    _, metric, sign = _OBJECTIVES[document["job"]["search"]["objective"]]
    best = document["best"]
    heading(
        out, "Modes", "best deployment of each; where none is feasible, the nearest miss and what it breaks"
    )
    numeric: tuple[str, ...] = ("GPUs", "tok/s\n/GPU", "tok/s\n/user", "TTFT\nms", "TPOT\nms")
    costed = out.width >= _NARROW
    numeric += ("$ per\nMtok",) if costed else ()
    table = plain_table("", "mode", "deployment", *numeric, "limited by", right=numeric)
    table.columns[1].no_wrap = True
    table.columns[2].overflow, table.columns[2].min_width = "fold", 12
    table.padding = (0, 1, 0, 0)

    def rank(entry: Mapping[str, Any]) -> tuple[int, float]:
        d = document["best_per_mode"][entry["name"]]
        if best is not None and best["mode"] == entry["name"]:
            return -1, 0.0
        if entry["status"] == "no_layout":
            return 2, 0.0
        if entry["status"] == "infeasible":
            return 1, -min(d["slack"].values())
        return 0, sign * d[metric]

    for entry in sorted(document["modes"], key=rank):
        d = document["best_per_mode"][entry["name"]]
        if entry["status"] == "no_layout":
            table.add_row("✗", entry["name"], Text(d["reason"], "dim"), style="dim")
            continue
        winner = best is not None and best["mode"] == entry["name"]
        numbers = [
            d[key]
            for key in ("tokens_per_s_per_gpu", "tokens_per_s_per_user", "ttft_percentile_ms", "tpot_ms")
        ]
        limited = constraint(d["binding"]["constraint"]) if d["binding"] else "nothing"
        if entry["status"] == "infeasible":
            limited = f"{constraint(d['constraint'])}, {missed(d['slack'][d['constraint']] / 100.0)}"
        table.add_row(
            "►" if winner else "✗" if entry["status"] == "infeasible" else "",
            entry["name"] + (_NOT_RUN if d["launchable"] is None else ""),
            d["label"],
            f"{d['gpus']}",
            *map(number, numbers),
            *([number(d["usd_per_mtok"])] if costed else []),
            limited,
            style="bold green" if winner else "dim" if entry["status"] == "infeasible" else "",
        )
    out.print(table)
    if any(d["launchable"] is None for d in document["best_per_mode"].values() if "launchable" in d):
        paragraph(out, Text(f"{_NOT_RUN} {not_run(document['job']['framework'])}", "dim"))


def _print_types(out: Console, document: Mapping[str, Any]) -> None:
    """What every combination of data types does best; those that cannot run, by reason."""
    _, metric, sign = _OBJECTIVES[document["job"]["search"]["objective"]]
    heading(out, "Data types", "best deployment of each combination that can run")
    numeric = ("GPUs", "tok/s\n/GPU", "tok/s\n/user", "$ per\nMtok")
    table = plain_table("types", "mode", "deployment", *numeric, right=numeric)
    table.padding = (0, 1, 0, 0)
    searched = [row for row in document["data_types"] if row["status"] != "left_out"]
    for row in sorted(searched, key=lambda row: sign * row["best"][metric] if row["best"] else float("inf")):
        d = row["best"]
        if d is None:
            table.add_row(row["words"], "–", Text(row["reason"]), style="dim")
            continue
        names = ("tokens_per_s_per_gpu", "tokens_per_s_per_user", "usd_per_mtok")
        numbers = [number(d[name]) for name in names]
        table.add_row(row["words"], d["mode"], plain_label(d), f"{d['gpus']}", *numbers)
    out.print(Padding(table, (0, 0, 0, INDENT)))
    left_out = Counter(row["reason"] for row in document["data_types"] if row["status"] == "left_out")
    for reason, rows in left_out.items():
        words = "1 combination is" if rows == 1 else f"{rows} combinations are"
        paragraph(out, Text(f"{words} left out: {reason}", "dim"))


def _print_misses(out: Console, document: Mapping[str, Any]) -> None:
    heading(out, "Nothing is feasible", "nearest misses: what would work if one limit were another")
    rows = [
        (
            constraint(miss["constraint"]),
            Text.assemble((miss["label"], "bold"), f"  {miss['mode']}\n{miss['reason']}"),
        )
        for miss in document["nearest_misses"]
    ]
    if not rows:
        rows = [(entry["name"], Text(entry["reason"])) for entry in document["modes"]]
    facts(out, rows)


def cluster_text(best: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    """How much of the cluster one deployment takes, and what as many copies as fit would serve."""
    have = sum(pool["count"] for pool in job["cluster"]["pools"])
    copies, used = best["cluster_copies"], best["gpus"]
    if copies <= 1:
        spare = have - used
        return f"{used} of {have} GPUs" + (f", {spare} stay free" if spare else "")
    return (
        f"{used} of {have} GPUs; {copies} copies fill {copies * used} and serve "
        f"{number(best['cluster_tokens_per_s'])} tokens/s"
    )


def _print_next(out: Console, document: Mapping[str, Any], job: str, written: Sequence[Path]) -> None:
    heading(out, "Next")
    rows: list[tuple[str, str]] = []
    folder = written[0].parent if written else Path("answer")
    name, where = shlex.quote(job), shlex.quote(str(folder))
    if written:
        rows.append((f"{folder}/", f"{', '.join(path.name for path in written)} have been written"))
        report = next((path for path in written if path.suffix == ".html"), None)
        if report is not None:
            rows.append((str(report), "open it in a browser: the front and the modes as figures"))
    else:
        rows.append(
            (f"afd-dse optimize {name} --out {where}", "write result.json, pareto.csv, report.html, …")
        )
    if not document["best"] and document["job"]["search"]["space"] in _SMALLER_SPACES:
        words = "any size, context and pipeline parallelism, redundant experts: perhaps something is feasible"
        rows.append((f"afd-dse optimize {name} --space {_LARGEST_SPACE}", words))
    if document["best"] or document["nearest_misses"]:
        rows.append((f"afd-dse estimate {name} {where}", "where the time goes, operator by operator"))
    best, framework = document["best"], document["job"]["framework"]
    if best and best["launchable"] is None:
        words = f"the best of what {framework} runs today"
        rows.append((f"afd-dse optimize {name} --launchable", words))
    if written and document["best_launchable"]:
        words = "scripts and configurations that start it, or the best listed that can be launched"
        rows.append((f"afd-dse launch {where} --out {where}/launch", words))
    others = [
        entry["name"] for entry in document["modes"] if entry["status"] == "feasible" and entry["reason"]
    ]
    if others:
        other = shlex.quote(others[0])
        rows.append((f"afd-dse estimate {name} {where} --mode {other}", "the same of another mode"))
    for command, words in rows:
        # NOTE: a command is never wrapped, so that it can be copied.
        out.print(Text(" " * INDENT).append(command, "cyan"), soft_wrap=True)
        paragraph(out, Text(words, "dim"), 2 * INDENT)
