"""How far predictions lie from the published runs, by partition: for docs/accuracy.md and the gate of the tests.

    python benchmarks/accuracy.py           # prints the tables
    python benchmarks/accuracy.py --write   # and stores today's errors for tests/calibration/test_gate.py

Errors are per cent of what was measured.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from afd_dse.calibration.api import validate
from afd_dse.calibration.measured import REASON

DATA = Path(__file__).resolve().parents[1] / "tests" / "data"
RUNS, STORED = DATA / "measured_runs.csv", DATA / "accuracy.json"
# What the gate holds: errors of these, overall and by partition, and the median ones overall.
HELD = ("tpot_mape", "ttft_mape", "throughput_mape")
HELD_OVERALL = (*HELD, "tpot_median_ape", "ttft_median_ape", "throughput_median_ape")
PARTITIONS = ("framework", "accelerator", "mode", "model")
_METRICS = {"tpot": "TPOT", "ttft": "TTFT", "throughput": "throughput per GPU"}


def held(facts: Mapping[str, Any], table: pd.DataFrame) -> dict[str, Any]:
    """What the gate compares, of a summary and its table: errors, and the runs that have no prediction."""
    return {
        "unpredicted": sorted(table.loc[table[REASON] != "", "id"]),
        "overall": {name: _rounded(facts[name]) for name in HELD_OVERALL},
        "by": {
            partition: {
                value: {name: _rounded(part[name]) for name in HELD}
                for value, part in facts["by"][partition].items()
            }
            for partition in PARTITIONS
        },
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _overall(facts: Mapping[str, Any]) -> pd.DataFrame:
    columns = {
        "mean error": "mape",
        "median error": "median_ape",
        "bias": "bias",
        "inside the 90 % interval": "coverage90",
    }
    rows = {
        title: {column: facts[f"{metric}_{key}"] for column, key in columns.items()}
        for metric, title in _METRICS.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def _by(facts: Mapping[str, Any], partition: str) -> pd.DataFrame:
    columns = {
        "runs": "rows",
        "TPOT mean": "tpot_mape",
        "median": "tpot_median_ape",
        "bias": "tpot_bias",
        "TTFT mean": "ttft_mape",
        "TTFT median": "ttft_median_ape",
        "throughput mean": "throughput_mape",
    }
    rows = {
        value: {column: part[key] for column, key in columns.items()}
        for value, part in facts["by"][partition].items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def _print(frame: pd.DataFrame) -> None:
    """A table in Markdown."""
    print(f"| {' | '.join(['', *frame.columns])} |")
    print(f"|{'---|' * (len(frame.columns) + 1)}")
    for name, row in frame.iterrows():
        cells = [_cell(str(column), value) for column, value in row.items()]
        print(f"| {' | '.join([str(name), *cells])} |")
    print()


def _cell(column: str, value: float | None) -> str:
    if value is None or pd.isna(value):
        return "–"
    return f"{value:.0f}" if column == "runs" else f"{value:.1f} %"


def main(
    write: Annotated[
        bool, typer.Option("--write", help="Store today's errors as those that the gate holds to.")
    ] = False,
) -> None:
    """Print the errors, and store them if told to."""
    facts, table = validate(RUNS)
    print(f"{facts['predicted']} of {facts['rows']} runs have a prediction.\n")
    _print(_overall(facts))
    print(
        f"{facts['coverage90']:.1f} % of all values lie inside their 90 % interval. Over {facts['questions']} "
        f"questions the regret is {facts['regret']:.2f} %, "
        f"under a TPOT limit {facts['regret_under_tpot_limit']:.1f} % "
        f"with {facts['limits_broken']} limits broken; rank correlation {facts['rank_correlation']:.3f}.\n"
    )
    for partition in (*PARTITIONS, "precision", "concurrency_class"):
        print(f"By {partition.replace('_', ' ')}:\n")
        _print(_by(facts, partition))
    if write:
        STORED.write_text(json.dumps(held(facts, table), indent=1) + "\n", encoding="utf-8")
        print(f"written: {STORED}")


if __name__ == "__main__":
    typer.run(main)
