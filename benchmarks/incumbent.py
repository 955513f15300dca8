"""The same question to aiconfigurator and to us, in one run: time, configurations, answer.

aiconfigurator is not a dependency: it stands in an environment of its own, whose Python ``--aic-python`` or the
variable AIC_PYTHON names (``python3 -m venv aic && aic/bin/pip install aiconfigurator``). Only what it writes is read.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.figures import Figure, Options, Target
from benchmarks.process import CLI, NotMeasuredError, run

GROUP = "beside aiconfigurator"
FASTER, MORE = 100.0, 100.0
HOW = "name a Python that has aiconfigurator with --aic-python or AIC_PYTHON"
_COMPLETED = re.compile(r"Experiment (\w+) completed with ([\d,]+) results")
_SECONDS = re.compile(r"All experiments completed in ([\d.]+) seconds")
_VERSION = re.compile(r"Loading AIConfigurator version: (\S+)")
# Columns of its best_config_topn.csv, the first that is there: over all GPUs of the cluster before over those used.
_RATE = ("tokens/s/gpu_cluster", "tokens/s/gpu")


@dataclass(frozen=True, slots=True)
class Question:
    """What both are asked: kernels are TensorRT-LLM's, data types those of the checkpoint, limits in ms."""

    model: str
    accelerator: str
    gpus: int
    modes: str  # aiconfigurator's --serving-mode; we always compare all modes
    judged: bool = True  # whether it takes long enough for a ratio to say more than how fast a process starts
    input_tokens: int = 4096
    output_tokens: int = 1024
    ttft_ms: float = 2000.0
    tpot_ms: float = 30.0

    def job(self) -> dict[str, Any]:
        """Our job file."""
        return {
            "model": self.model,
            "framework": "trtllm",
            "cluster": {"pools": [{"name": "main", "accelerator": self.accelerator, "count": self.gpus}]},
            "workload": {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens},
            "slo": {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms},
        }

    def command(self, python: str, folder: str) -> list[str]:
        """Its command line."""
        options = {
            "model": self.model,
            "total-gpus": self.gpus,
            "system": self.accelerator,
            "backend": "trtllm",
            "isl": self.input_tokens,
            "osl": self.output_tokens,
            "ttft": self.ttft_ms,
            "tpot": self.tpot_ms,
            "serving-mode": self.modes,
            "save-dir": folder,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return [python, "-m", "aiconfigurator.main", "cli", "default", *words, "--no-color"]


QUESTIONS: Mapping[str, Question] = {
    "qwen3-32b": Question("Qwen/Qwen3-32B", "h200_sxm", 8, "auto", judged=False),
    "qwen3-30b": Question("Qwen/Qwen3-30B-A3B", "h100_sxm", 32, "all"),
    "qwen3-235b": Question("Qwen/Qwen3-235B-A22B", "h200_sxm", 64, "all"),
}
USUAL, SMALLEST = ("qwen3-32b", "qwen3-30b"), ("qwen3-32b",)


def figures(options: Options) -> Iterator[Figure]:
    """The usual questions; when quick the smallest."""
    for name in SMALLEST if options.quick else USUAL:
        yield from compared(name, options)


def compared(name: str, options: Options) -> Iterator[Figure]:
    """Ratios of one question: whole answer from the command line, configurations, best throughput by mode."""
    question = QUESTIONS[name]
    group = f"{GROUP}: {question.model.rpartition('/')[2]} on {question.gpus} {question.accelerator}"
    faster, wanted = (
        "times faster to the whole answer",
        Target("at least", FASTER) if question.judged else None,
    )
    if not options.aic_python:
        yield Figure(group, faster, None, "×", wanted, f"skipped: {HOW}")
        return
    try:
        theirs = _theirs(question, options.aic_python, options.limit_s)
        ours = _ours(question, options.limit_s)
    except (NotMeasuredError, OSError) as error:
        yield Figure(group, faster, None, "×", wanted, f"not compared: {error}")
        return
    facts = {"question": name, "ours": ours, "theirs": theirs}
    processor = f"processor {theirs['cpu_s']:.3g}, {ours['cpu_s']:.3g}"
    search = f"its experiments {theirs['search_s']:.3g} s, our search {ours['search_s']:.3g} s"
    note = f"{theirs['wall_s']:.3g} s against {ours['wall_s']:.3g} s ({processor}; {search})"
    ratio = theirs["wall_s"] / ours["wall_s"]
    yield Figure(group, faster, ratio, "×", wanted, note, facts)
    reported = sum(theirs["results"].values())
    for what in ("considered", "evaluated"):
        note = f"{ours[what]:,} against {reported:,} that it reports"
        target = Target("at least", MORE) if what == "considered" and question.judged else None
        value = ours[what] / reported if reported else None
        yield Figure(group, f"times the layouts, {what}", value, "×", target, note)
    yield from _answers(group, ours, theirs)


def _answers(group: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[Figure]:
    """Best throughput per GPU of both; no target, the two models differ."""
    best = max(theirs["best"].items(), key=lambda item: item[1]["tokens_per_s_per_gpu"], default=None)
    if best is None or ours["best"] is None:
        yield Figure(
            group,
            "best tokens/s per GPU, ours / theirs",
            None,
            "",
            None,
            "one of both found nothing feasible",
        )
        return
    mode, found = best
    value = ours["best"]["tokens_per_s_per_gpu"] / found["tokens_per_s_per_gpu"]
    note = f"ours {_said(ours['best']['mode'], ours['best'])}; theirs {_said(mode, found)}"
    yield Figure(group, "best tokens/s per GPU, ours / theirs", value, "×", None, note)


def _said(mode: str, found: Mapping[str, Any]) -> str:
    return (
        f"{mode} {found['tokens_per_s_per_gpu']:,.0f} tok/s/GPU,"
        f" TTFT {found['ttft_ms']:,.0f} ms, TPOT {found['tpot_ms']:.1f} ms"
    )


def _ours(question: Question, limit_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="afd-dse-benchmarks-") as folder:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps(question.job()), encoding="utf-8")
        done = run([*CLI, "optimize", str(job), "--json"], limit_s=limit_s)
    if done.returncode not in (0, 3):
        raise NotMeasuredError(f"afd-dse optimize: exit code {done.returncode}: {done.stderr.strip()[-200:]}")
    answer = json.loads(done.stdout)
    names = ("mode", "label", "gpus", "tokens_per_s_per_gpu", "ttft_ms", "tpot_ms")
    best = answer["best"]
    return {
        "wall_s": done.wall_s,
        "cpu_s": done.cpu_s,
        "search_s": answer["search_seconds"],
        "considered": answer["considered"],
        "evaluated": answer["evaluated"],
        "best": None if best is None else {name: best[name] for name in names},
        "best_per_mode": {
            mode: found["tokens_per_s_per_gpu"]
            for mode, found in answer["best_per_mode"].items()
            if found["feasible"]
        },
    }


def _theirs(question: Question, python: str, limit_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="afd-dse-benchmarks-") as folder:
        done = run(question.command(python, folder), limit_s=limit_s)
        log = done.stdout + done.stderr
        best = best_of(Path(folder))
    results = results_of(log)
    if done.returncode or not results:
        last = [line for line in log.strip().splitlines() if line.strip()][-1:] or ["no output"]
        raise NotMeasuredError(f"aiconfigurator: exit code {done.returncode}: {last[0].strip()[-200:]}")
    version, seconds = _VERSION.search(log), _SECONDS.search(log)
    return {
        "version": version.group(1) if version else None,
        "search_s": float(seconds.group(1)) if seconds else done.wall_s,
        "wall_s": done.wall_s,
        "cpu_s": done.cpu_s,
        "results": results,
        "best": best,
    }


def results_of(log: str) -> dict[str, int]:
    """By mode the number of configurations that its log says it has results for."""
    return {mode: int(count.replace(",", "")) for mode, count in _COMPLETED.findall(log)}


def best_of(folder: Path) -> dict[str, dict[str, float]]:
    """By mode the first row of its ``best_config_topn.csv``; a mode without one, or with an empty one, is left out."""
    found = {}
    for path in sorted(folder.rglob("best_config_topn.csv")):
        try:
            table = pd.read_csv(path)
        except pd.errors.EmptyDataError:
            continue
        rate = next((name for name in _RATE if name in table), None)
        if rate is None or not {"ttft", "tpot"} <= set(table.columns) or table.empty:
            continue
        row = table.iloc[0]
        found[path.parent.name] = {
            "tokens_per_s_per_gpu": float(row[rate]),
            "ttft_ms": float(row["ttft"]),
            "tpot_ms": float(row["tpot"]),
        }
    return found
