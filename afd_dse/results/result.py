"""The answer to a job: best deployments, the front, why each mode lost, nearest misses; built, and read back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from afd_dse.architecture.work import parameters
from afd_dse.cost.evaluation import CONSTRAINTS
from afd_dse.cost.scenario import Scenario
from afd_dse.errors import InputError, Problem
from afd_dse.operators import store
from afd_dse.operators.latency import IntArray
from afd_dse.results.breakdown import kind_words
from afd_dse.results.deployment import Deployment, deployment_of, finite, types_of
from afd_dse.results.layout import labels
from afd_dse.results.policies import RELEASED, runs_today
from afd_dse.results.proof import proof_of, proof_of_all
from afd_dse.results.reasons import violated
from afd_dse.results.table import candidate_table
from afd_dse.results.words import constraint, not_run, number, percent
from afd_dse.rows import join_rows
from afd_dse.search.objective import TIE_TOLERANCE, Objective
from afd_dse.search.pool import Found, near_misses, pareto_rows, ranking
from afd_dse.search.run import ModeOutcome, SearchOutcome
from afd_dse.spec.job import Job, job_warnings

FEASIBLE, INFEASIBLE, NO_LAYOUT = "feasible", "infeasible", "no_layout"
RANKED = 10  # distinct layouts listed over all modes
RANKED_PER_MODE = 5
# From this share of guessed time on a warning says so.
GUESS_WARNING = 0.25
# What every result holds.
_NUMBER, _PERHAPS = (int, float), (dict, type(None))
_CONTENT: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("job", "model", "best_per_mode", "proof", "provenance"), dict),
    **dict.fromkeys(("best", "best_launchable"), _PERHAPS),
    **dict.fromkeys(("pareto", "ranking", "modes", "nearest_misses", "warnings"), list),
    **dict.fromkeys(("considered", "evaluated", "search_seconds"), _NUMBER),
    **dict.fromkeys(("method", "explanation"), str),
}
# What an objective compares modes by: metric, words, and whether less is better.
COMPARED: dict[str, tuple[str, str, bool]] = {
    "throughput_per_gpu": ("tokens_per_s_per_gpu", "tokens/s per GPU", False),
    "total_throughput": ("tokens_per_s", "tokens/s", False),
    "usd_per_mtok": ("usd_per_mtok", "$ per million tokens", True),
    "fewest_gpus": ("gpus", "GPUs", True),
}


@dataclass(frozen=True)
class Result:
    """What :func:`afd_dse.optimize` returns.

    ``document`` is the content of ``result.json`` (plain JSON values); ``candidates`` the evaluated candidates worth
    keeping, one row each, in the units of the document.
    """

    document: Mapping[str, Any]
    candidates: pd.DataFrame

    @property
    def feasible(self) -> bool:
        """Whether some deployment meets every limit."""
        return self.document["best"] is not None

    @property
    def best(self) -> Deployment | None:
        """The best deployment of all modes, None when nothing is feasible."""
        best: Deployment | None = self.document["best"]
        return best

    @property
    def best_per_mode(self) -> dict[str, Deployment]:
        """By mode the best deployment; where none is feasible the nearest miss, with its reason."""
        return dict(self.document["best_per_mode"])

    @property
    def pareto(self) -> list[Deployment]:
        """The front of tokens/s per GPU against tokens/s per user, fastest for a user first."""
        return list(self.document["pareto"])

    @property
    def ranking(self) -> list[Deployment]:
        """The best distinct layouts of all modes, best first."""
        return list(self.document["ranking"])

    @property
    def modes(self) -> list[dict[str, Any]]:
        """Every mode with its status and reason, in the order asked for."""
        return list(self.document["modes"])

    @property
    def nearest_misses(self) -> list[Deployment]:
        """By constraint the deployment that violates only it, and by the least; empty when the job is feasible."""
        return list(self.document["nearest_misses"])

    @property
    def warnings(self) -> list[str]:
        """What to bear in mind, one sentence each."""
        return list(self.document["warnings"])

    def to_json(self) -> str:
        """The document as JSON text."""
        return json.dumps(self.document, indent=1, ensure_ascii=False, allow_nan=False)


def build_result(job: Job, scenario: Scenario, outcome: SearchOutcome) -> Result:
    """Turn what a search found into the answer of ``job``."""
    objective = job.search.objective
    parts = [(mode.name, mode.found) for mode in outcome.modes if mode.found is not None]
    joined = join_rows([found for _, found in parts]) if parts else None
    names = [name for name, found in parts for _ in range(len(found))]
    written = {name: labels(scenario, found.candidates) for name, found in parts}
    all_labels = [text for texts in written.values() for text in texts]
    ranked = front = runnable = np.zeros(0, dtype=np.int64)
    if joined is not None:
        ranked, front = ranking(scenario, objective, joined), pareto_rows(joined)
        runnable = ranked[runs_today(scenario, joined.candidates.take(ranked))]

    def documents(rows: IntArray) -> list[Deployment]:
        if joined is None:
            return []
        return [deployment_of(scenario, joined, int(row), names[row], objective) for row in rows]

    best = next(iter(documents(ranked[:1])), None)
    best_runnable = next(iter(documents(runnable[:1])), None)
    modes = [_mode(scenario, objective, mode, written.get(mode.name, []), best) for mode in outcome.modes]
    misses = [] if best is not None or joined is None else _nearest(scenario, objective, joined, names)
    document: dict[str, Any] = {
        "job": job.model_dump(mode="json"),
        "model": model_facts(scenario),
        "best": best,
        "best_per_mode": {mode["name"]: mode.pop("best") for mode in modes},
        "pareto": documents(front),
        "ranking": _ranked(scenario, objective, joined, ranked, names, all_labels, RANKED) if joined else [],
        "modes": modes,
        "nearest_misses": misses,
        "considered": outcome.considered,
        "evaluated": outcome.evaluated,
        "search_seconds": outcome.seconds,
        "method": outcome.method,
        "explanation": outcome.explanation,
        "proof": proof_of_all([m.name for m in outcome.modes], [m.proof for m in outcome.modes]),
        "provenance": _provenance(job, best or (misses[-1] if misses else None)),
        "best_launchable": best_runnable,
        "warnings": [
            *job_warnings(job),
            *launch_warning(job.framework, best, best_runnable),
            *_warnings(best),
        ],
    }
    table = candidate_table(scenario, joined, names, all_labels, ranked, front)
    return Result(document, table)


def model_facts(scenario: Scenario) -> dict[str, Any]:
    """What a reader wants to know of the model: its size and the data types that it is served in."""
    model = scenario.model
    total, active = parameters(model)
    return {
        "name": model.name,
        "layers": model.layers,
        "kinds": [kind_words(kind) for kind in model.kinds],
        "parameters": total,
        "active_parameters": active,
        "quantization": types_of(scenario),
    }


def _mode(
    scenario: Scenario,
    objective: Objective,
    mode: ModeOutcome,
    written: Sequence[str],
    winner: Deployment | None,
) -> dict[str, Any]:
    """The entry of one mode; its ``best`` moves to ``best_per_mode``. ``written``: the labels of its candidates."""
    entry: dict[str, Any] = {"name": mode.name, "partition": mode.partition.text}
    numbers = {
        "considered": mode.considered,
        "evaluated": mode.evaluated,
        "method": mode.method,
        "note": mode.note,
        "proof": proof_of(mode.proof),
    }
    if mode.found is None:
        why = mode.note or "no layout fits the cluster"
        none = {
            "mode": mode.name,
            "partition": mode.partition.text,
            "feasible": False,
            "reason": why,
            "groups": [],
        }
        return entry | {
            "status": NO_LAYOUT,
            "reason": why,
            **numbers,
            "nearest": [],
            "ranking": [],
            "front": [],
            "best": none,
        }
    names = [mode.name] * len(mode.found)
    if not len(mode.ranking):
        nearest = _nearest(scenario, objective, mode.found, names)
        closest = nearest[-1]
        entry |= {"status": INFEASIBLE, "reason": closest["reason"], **numbers}
        return entry | {"nearest": nearest, "ranking": [], "front": [], "best": closest}
    best = deployment_of(scenario, mode.found, int(mode.ranking[0]), mode.name, objective)
    ranked = _ranked(scenario, objective, mode.found, mode.ranking, names, written, RANKED_PER_MODE)
    entry |= {"status": FEASIBLE, "reason": why_behind(best, winner, objective), **numbers}
    front = _front_points(mode.found, written)
    return entry | {"nearest": [], "ranking": ranked, "front": front, "best": best}


def _front_points(found: Found, written: Sequence[str]) -> list[dict[str, Any]]:
    """The mode's own front as points for a plot; the whole deployments are in the candidates table."""
    m = found.evaluation.metrics
    return [
        {
            "label": written[row],
            "gpus": round(float(m["gpus"][row])),
            "tokens_per_s_per_user": float(m["tokens_per_s_per_user"][row]),
            "tokens_per_s_per_gpu": float(m["tokens_per_s_per_gpu"][row]),
            "ttft_ms": finite(1e3 * float(m["ttft_s"][row])),
            "tpot_ms": 1e3 * float(m["tpot_s"][row]),
        }
        for row in map(int, pareto_rows(found))
    ]


def why_behind(best: Deployment, winner: Deployment | None, objective: Objective) -> str | None:
    """Why a feasible mode is not the answer; None for the mode that is."""
    if winner is None or winner["mode"] == best["mode"]:
        return None
    metric, words, less = COMPARED[objective]
    ours, theirs = best[metric], winner[metric]
    if theirs == 0.0:  # GPUs without a price
        behind = 0.0
        if ours > 0.0:
            return f"more {words} than {winner['mode']}, which has none"
    else:
        behind = ours / theirs - 1.0 if less else 1.0 - ours / theirs
    if abs(behind) <= 10.0 * TIE_TOLERANCE:
        for name, kind in (("gpus", "on fewer GPUs"), ("ttft_ms", "with a lower TTFT")):
            if winner[name] < best[name]:
                return f"equal in {words}, but {winner['mode']} does it {kind}"
        return f"equal in {words}, but {winner['mode']} is the simpler layout"
    limit = best["binding"]
    bound = f"; limited by {constraint(limit['constraint'])}" if limit else ""
    return f"{percent(behind)} {'more' if less else 'fewer'} {words} than {winner['mode']}{bound}"


def _ranked(
    scenario: Scenario,
    objective: Objective,
    found: Found,
    rows: IntArray,
    names: Sequence[str],
    written: Sequence[str],
    limit: int,
) -> list[Deployment]:
    """The best ``limit`` candidates whose labels differ: a layout at a slightly other load says nothing new."""
    seen: dict[tuple[str, str], int] = {}
    for row in map(int, rows):
        seen.setdefault((names[row], written[row]), row)
        if len(seen) == limit:
            break
    return [
        deployment_of(scenario, found, row, names[row], objective) | {"rank": place}
        for place, row in enumerate(seen.values(), start=1)
    ]


def _nearest(
    scenario: Scenario, objective: Objective, found: Found, names: Sequence[str]
) -> list[Deployment]:
    """Nearest misses by constraint; the last one violates its worst constraint by the least of all.

    A deployment that needs more GPUs than there are is named only where nothing else is wrong with it.
    """
    slack = found.evaluation.slack
    wrong = slack < 0.0
    gpus = CONSTRAINTS.index("gpus")
    fits = np.flatnonzero(~wrong[:, gpus])
    rows = [row for row in map(int, near_misses(found)) if not wrong[row, gpus] or wrong[row].sum() == 1]
    if len(fits):
        closest = int(fits[slack[fits].min(axis=1).argmax()])
        rows = [row for row in rows if row != closest] + [closest]
    return [
        deployment_of(scenario, found, row, names[row], objective)
        | {"constraint": violated(found.evaluation.slack[row])}
        for row in rows or map(int, near_misses(found)[-1:])
    ]


def _provenance(job: Job, shown: Deployment | None) -> dict[str, Any]:
    """Shares of the time of the best deployment (or nearest miss) by origin, and what the tables are."""
    tables = store.package()
    return {
        **({} if shown is None else shown["provenance"]),
        "of": None if shown is None else shown["label"],
        "framework": job.framework,
        "operator_db": {key: tables.get(key) for key in ("name", "version", "licence")},
    }


def launch_warning(framework: str, best: Deployment | None, runnable: Deployment | None) -> list[str]:
    """What stands between the best deployment and a running one."""
    if best is None or best["launchable"] == RELEASED:
        return []
    if best["launchable"] is not None:
        return [f"{framework} runs {best['mode']} only with conditions: {best['launchable']}"]
    text = not_run(framework, f"{best['label']} ({best['mode']})")
    if runnable is None:
        return [f"{text}, nor any other that the search kept"]
    return [
        f"{text}; of what the search kept the best that it runs is {runnable['label']} ({runnable['mode']}) with "
        f"{number(runnable['tokens_per_s_per_gpu'])} tokens/s per GPU"
    ]


def _warnings(best: Deployment | None) -> list[str]:
    if best is None:
        return []
    shares = best["provenance"]
    guessed = shares["borrowed"] + shares["speed_of_light"]
    if guessed < GUESS_WARNING:
        return []
    return [
        f"{percent(guessed)} of the time of the best deployment is not from measurements of this kernel on this "
        f"accelerator ({percent(shares['borrowed'])} borrowed, {percent(shares['speed_of_light'])} speed of light)"
    ]


def headline(document: Mapping[str, Any]) -> str:
    """The answer in one line, for titles and logs."""
    best = document["best"]
    if best is None:
        return "no deployment meets the SLO"
    return (
        f"{best['label']} ({best['mode']}): {number(best['tokens_per_s_per_gpu'])} tokens/s per GPU at "
        f"{number(best['tokens_per_s_per_user'])} tokens/s per user"
    )


def read_result(path: str | Path) -> Result:
    """Read a result from its ``result.json`` or the folder that holds it; candidates only where they lie beside it.

    Raises :class:`InputError` when it is missing or not a result.
    """
    where = Path(path).expanduser()
    file = where / "result.json" if where.is_dir() else where
    remedy = "give a result.json or the folder that `afd-dse optimize --out` wrote"
    document = read_json(file, remedy)
    if not is_result(document):
        missing = [key for key in _CONTENT if not _holds(document, key)]
        without = f" (no {missing[0]} as a search writes it)" if len(missing) < len(_CONTENT) else ""
        raise InputError(Problem(str(file), None, f"is not the result of a search{without}", remedy))
    beside = file.with_name("candidates.parquet")
    try:
        table = pd.read_parquet(beside) if beside.is_file() else pd.DataFrame()
    except (OSError, ValueError) as error:
        raise InputError(Problem(str(beside), None, f"cannot be read ({error})", remedy)) from error
    if len(table) and not {"mode", "label", "gpus"} <= set(table.columns):
        raise InputError(Problem(str(beside), None, "is not the table of a search's candidates", remedy))
    return Result(document, table)


def read_json(file: Path, remedy: str) -> Any:
    """The JSON document in ``file``. Raises :class:`InputError` with ``remedy`` where there is none."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(Problem(str(file), None, f"cannot be read ({error.strerror})", remedy)) from error
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(str(file), None, f"is not JSON ({error})", remedy)) from error


def is_result(document: object) -> bool:
    """Whether a JSON document is a result (and not, say, one deployment)."""
    return all(_holds(document, key) for key in _CONTENT)


def _holds(document: object, key: str) -> bool:
    return isinstance(document, dict) and key in document and isinstance(document[key], _CONTENT[key])
