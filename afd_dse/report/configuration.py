"""The full configuration of candidates in words, from the columns of the candidates table."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from html import escape
from typing import Any

import pandas as pd

from afd_dse.operators.latency import IntArray
from afd_dse.results.words import number
from afd_dse.spec.cells import parse_partition

_DEGREES = (("tp", "TP"), ("dp", "DP"), ("cp", "CP"), ("pp", "PP"), ("moe_tp", "ETP"), ("ep", "EP"))
_UNUSED = ("slack_", "share_")
_PHASES = ("prefill", "decode")


def hover_texts(rows: pd.DataFrame) -> tuple[str, ...]:
    """For every row its label and mode, what it achieves, and how it is laid out; lines end with ``<br>``."""
    # NOTE: column by column; a row of a mixed table is far slower to take out.
    columns = {name: rows[name].tolist() for name in rows.columns if not name.startswith(_UNUSED)}
    records = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    return tuple("<br>".join(_lines(record)) for record in records)


def short_texts(points: pd.DataFrame, rows: IntArray) -> tuple[str, ...]:
    """Label, mode and size of many rows, quickly: for points behind the fronts."""
    chosen = (points[name].iloc[rows].tolist() for name in ("label", "mode", "gpus"))
    return tuple(
        f"<b>{escape(str(label))}</b>  {escape(str(mode))}, {gpus:.0f} GPUs"
        for label, mode, gpus in zip(*chosen, strict=True)
    )


def _lines(row: Mapping[Any, Any]) -> Iterator[str]:
    yield f"<b>{escape(str(row['label']))}</b>  {escape(str(row['mode']))}"
    yield (
        f"{number(row['tokens_per_s_per_gpu'])} tokens/s per GPU, {number(row['tokens_per_s_per_user'])} per user, "
        f"{row['gpus']:.0f} GPUs"
    )
    yield (
        f"TTFT {number(row['ttft_percentile_ms'])} ms, TPOT {number(row['tpot_ms'])} ms, "
        f"request {number(row['request_latency_ms'])} ms"
    )
    yield f"${number(row['usd_per_mtok'])} per Mtok, {number(row['joules_per_token'])} J per token"
    for phase in _PHASES:
        if f"{phase}_replicas" in row:
            yield f"{phase}: {escape(phase_words(row, phase))}"
    load = f"batch {number(row['batch_size'])} per attention rank, chunk {number(row['chunk_tokens'])} tokens"
    yield load + (f", {policy} prefill" if (policy := policy_of(row)) else "")


def policy_of(row: Mapping[Any, Any]) -> str:
    """How prefill shares the steps of decode; empty where the phases have steps of their own."""
    policy = row.get("policy")
    return policy if isinstance(policy, str) and _shares_steps(str(row["partition"])) else ""


@lru_cache(maxsize=64)
def _shares_steps(partition: str) -> bool:
    return parse_partition(partition).shares_steps


def phase_words(row: Mapping[Any, Any], phase: str) -> str:
    """How one phase is cut: ``5 × TP1 DP8 EP8, 2 micro-batches, attention on main, FFN on fast``."""
    degrees = [
        f"{name}{row[f'{phase}_{key}']:.0f}"
        for key, name in _DEGREES
        if row[f"{phase}_{key}"] > 1 or key in ("tp", "ep")
    ]
    words = f"{row[f'{phase}_replicas']:.0f} × {' '.join(degrees)}"
    if row[f"{phase}_micro_batches"] > 1:
        words += f", {row[f'{phase}_micro_batches']:.0f} micro-batches"
    if row[f"{phase}_redundant"] > 0:
        words += f", {row[f'{phase}_redundant']:.0f} redundant experts"
    pools = (row[f"{phase}_attention_pool"], row[f"{phase}_ffn_pool"])
    return words + (f", attention on {pools[0]}, FFN on {pools[1]}" if pools[0] != pools[1] else "")
