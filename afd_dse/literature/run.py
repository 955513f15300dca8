"""All rows of a file: evaluate, compare, say why where it does not work."""

import math
from pathlib import Path
from typing import Any

from afd_dse.errors import InputError
from afd_dse.literature import (  # noqa: F401 - they register themselves
    barriers,
    costs,
    deployments,
    pipelines,
    plans,
    ratios,
    studies,
    supply_bound,
)
from afd_dse.literature.answer import EVALUATORS, Answer, Value
from afd_dse.literature.compare import judge
from afd_dse.literature.rows import Row, Unreadable, read_rows
from afd_dse.spec.suggest import choose


def literature(path: str | Path) -> dict[str, Any]:
    """Evaluate the published results in a CSV file.

    ``{"rows": n, "passed": n, "results": [{"id", "expected", "ours", "ok", "note"}]}``; ``ours`` is None where there is
    no answer, and ``note`` says why. Raises InputError when the file is no such table.
    """
    results = [_result(row) for row in read_rows(path)]
    return {"rows": len(results), "passed": sum(result["ok"] for result in results), "results": results}


def _result(row: Row | Unreadable) -> dict[str, Any]:
    if isinstance(row, Unreadable):
        return _line(row, None, False, row.reason)
    answering = EVALUATORS.get(row.evaluator)
    if answering is None:
        reason = f"evaluator {row.evaluator!r} is unknown; {choose(row.evaluator, EVALUATORS)}"
        return _line(row, None, False, reason)
    try:
        answer = answering(row)
    except InputError as error:
        return _line(row, None, False, "; ".join(str(problem) for problem in error.problems))
    except Exception as error:
        # A row's inputs may be nonsense in ways that no check foresees; the other rows must not suffer.
        return _line(row, None, False, f"{type(error).__name__}: {error}")
    ok, difference = judge(row, answer)
    unused = row.inputs.unused
    ignored = f"not used: {', '.join(unused)}" if unused else ""
    return _line(row, answer, ok, ". ".join(text for text in (difference, answer.note, ignored) if text))


def _finite(value: Value) -> Value:
    """JSON has no infinity."""
    return value if isinstance(value, str) or math.isfinite(value) else str(value)


def _line(row: Row | Unreadable, answer: Answer | None, ok: bool, note: str) -> dict[str, Any]:
    ours: Any = None
    if answer is not None:
        shown = [_finite(value) for value in answer.values]
        ours = shown[0] if len(shown) == 1 else shown
    return {"id": row.id, "expected": row.expected, "ours": ours, "ok": ok, "note": note}
