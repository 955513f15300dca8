"""What `validate` and `calibrate` show in a terminal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from afd_dse.spec.calibration import Calibration

_METRICS = {"tpot": "TPOT", "ttft": "TTFT", "throughput": "throughput"}
_SHOWN_BY = {"framework": "framework", "accelerator": "accelerator", "model": "model", "mode": "mode"}
_MOST = 12


def print_validation(facts: Mapping[str, Any], source: Path) -> None:
    """Errors overall and by partition."""
    console = Console()
    if "kv_capacity_rows" in facts:
        _print_kv_capacity(console, facts, source)
        return
    console.print(f"[bold]{facts['predicted']} of {facts['rows']} runs[/bold] of {source} have a prediction")
    for reason, count in facts["unsupported"].items():
        console.print(f"  {count} without: {reason}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "mean error %", "median error %", "bias %", "inside the 90 % interval %"):
        table.add_column(column, justify="left" if not column else "right")
    for key, name in _METRICS.items():
        table.add_row(
            name, *(_shown(facts[f"{key}_{what}"]) for what in ("mape", "median_ape", "bias", "coverage90"))
        )
    console.print(table)
    console.print(
        f"choosing among the configurations measured for one of {facts['questions']} questions: throughput "
        f"{_shown(facts['regret'])} % below the best on average, {_shown(facts['regret_under_tpot_limit'])} % under a "
        f"TPOT limit ({facts['limits_broken']} limits broken); rank correlation {_shown(facts['rank_correlation'], 2)}"
    )
    for key, title in _SHOWN_BY.items():
        _print_partition(console, title, facts["by"][key])


def _print_partition(console: Console, title: str, parts: Mapping[str, Mapping[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.add_column(f"by {title}")
    for column in ("runs", "TPOT mean %", "median %", "bias %", "TTFT median %", "throughput mean %"):
        table.add_column(column, justify="right")
    largest = sorted(parts.items(), key=lambda item: -item[1]["rows"])
    for name, facts in largest[:_MOST]:
        keys = ("tpot_mape", "tpot_median_ape", "tpot_bias", "ttft_median_ape", "throughput_mape")
        table.add_row(name, str(facts["rows"]), *(_shown(facts[key]) for key in keys))
    if len(largest) > _MOST:
        table.add_row(f"and {len(largest) - _MOST} more (--json)")
    console.print()
    console.print(table)


def _print_kv_capacity(console: Console, facts: Mapping[str, Any], source: Path) -> None:
    console.print(
        f"[bold]{facts['kv_capacity_predicted']} of {facts['kv_capacity_rows']} engines[/bold] of {source} have a "
        f"prediction; concurrent sequences are off by {_shown(facts['kv_capacity_mape'], 2)} % on average, "
        f"{_shown(facts['kv_capacity_median_ape'], 2)} % in the median"
    )
    for reason, count in facts["kv_capacity_unsupported"].items():
        console.print(f"  {count} without: {reason}")


def print_calibration(
    fitted: Calibration, errors: Mapping[str, Any], written: Path, frameworks: set[str]
) -> None:
    """What was fitted, and what it brought on the runs it was fitted to."""
    console = Console()
    console.print(f"[bold]{fitted.source}[/bold]")
    table = Table(box=None, pad_edge=False, header_style="bold")
    names = (
        ("layer µs", "layer_overhead_us"),
        ("dense FFN µs", "dense_layer_overhead_us"),
        ("linear layer µs", "linear_layer_overhead_us"),
        ("step ms", "step_overhead_ms"),
        ("sequence µs", "sequence_overhead_us"),
        ("request ms", "request_overhead_ms"),
        ("admission steps", "admission_steps"),
        ("prompts ahead", "prompts_ahead"),
    )
    table.add_column("overheads")
    for title, _ in names:
        table.add_column(title, justify="right")
    for framework in sorted(frameworks & set(fitted.overheads)):
        for generation, values in fitted.overheads[framework].items():
            table.add_row(
                f"{framework} {generation}", *(_shown(getattr(values, name), 2) for _, name in names)
            )
    console.print(table)
    before, after = errors["before"], errors["after"]
    for key, name in _METRICS.items():
        console.print(
            f"{name}: median error {_shown(before[f'{key}_median_ape'])} % before, "
            f"{_shown(after[f'{key}_median_ape'])} % with it (on the same runs)"
        )
    console.print(f"written: {written}; use it with `calibration: {written}` in a job, or --calibration")


def _shown(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
