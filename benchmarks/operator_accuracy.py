"""How well the operator database predicts points that it was not shown, by family, place and data type.

Points are held out, the rest builds the table, and the table predicts them; errors are |predicted / measured - 1|.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pandas as pd
import typer

from afd_dse.operators import collectives, expert_exchange, gemm, moe
from afd_dse.operators.latency import FloatArray
from afd_dse.operators.speed_of_light import gemm_work, moe_work, seconds
from afd_dse.operators.store import load_table, tables
from afd_dse.rows import distinct_keys, take_rows
from afd_dse.spec.accelerator import Accelerator
from afd_dse.spec.catalogue import load_accelerator

FOLDS = 8
QUICK_ACCELERATORS = ("h200_sxm", "b200_sxm")
# Sites that models hit; the others are a cache line wide or larger than any weight.
SITE_RANGE = (512, 16384)
HELD_EPS = (4, 16, 64)

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Row:
    """Errors of one held-out test."""

    family: str
    held_out: str
    accelerator: str
    framework: str
    dtype: str
    errors: FloatArray


def folds(values: npt.ArrayLike) -> Iterator[Mask]:
    """Masks of interior distinct ``values``, every FOLDS-th held out at a time: neighbours stay in."""
    column = np.asarray(values)
    distinct = np.unique(column)
    for fold in range(FOLDS):
        held = distinct[1:-1][fold::FOLDS]
        if len(held):
            yield np.isin(column, held)


def predict_gemm(rows: pd.DataFrame, held: Mask, rates: Accelerator, dtype: str, common: Mask) -> FloatArray:
    """Errors on those ``held`` rows that are ``common``, of a table built from the rows not held."""
    table = gemm.GemmTable(rows[~held], rates, dtype)
    test = rows[held & common]
    m, n, k = (test[name].to_numpy(np.float64) for name in ("m", "n", "k"))
    efficiency, _ = table(m, n, k)
    work = gemm_work(dtype, *table.raised(m, n, k))
    predicted = seconds(rates, dtype, work.flop, work.bytes) / efficiency
    error: FloatArray = np.abs(predicted / test["seconds"].to_numpy(np.float64) - 1.0)
    return error


def gemm_rows(accelerator: str, framework: str) -> Iterator[Row]:
    """GEMM: held-out m, and held-out n or k as a whole."""
    frame = load_table(accelerator, framework, "gemm")
    if frame is None:
        return
    rates = load_accelerator(accelerator)
    low, high = SITE_RANGE
    for dtype in sorted(frame["gemm_dtype"].unique()):
        rows = gemm.clean_rows(frame, rates, dtype)
        if rows.empty:
            continue
        common = (rows["n"].between(low, high) & rows["k"].between(low, high)).to_numpy()
        errors = [predict_gemm(rows, held, rates, dtype, common) for held in folds(rows["m"])]
        yield Row("gemm", "m", accelerator, framework, dtype, np.concatenate(errors))
        for axis in ("n", "k"):
            values = np.unique(rows[axis][common])[1:-1]
            errors = [
                predict_gemm(rows, (rows[axis] == value).to_numpy(), rates, dtype, common) for value in values
            ]
            yield Row("gemm", axis, accelerator, framework, dtype, np.concatenate(errors))


def predict_moe(rows: pd.DataFrame, held: Mask, rates: Accelerator, dtype: str) -> FloatArray:
    """Errors on the ``held`` rows; where several kernels were measured, of the fastest against the fastest."""
    table = moe.MoeTable(rows[~held], rates, dtype)
    test = rows[held]
    keys = [
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "moe_tp_size",
        "moe_ep_size",
        "gated",
        "num_tokens",
    ]
    best = test.groupby(keys, as_index=False)["latency_ms"].min()
    columns = [best[key].to_numpy(np.float64) for key in keys]
    errors = []
    groups, which = distinct_keys(*columns[:7])
    for number, key in enumerate(groups):
        index = np.flatnonzero(which == number)
        local = float(np.ceil(key[3] / key[5]))
        tokens = columns[7][index]
        plan = table.plan(key[:5], local, moe.BALANCED, bool(key[6]))
        efficiency, _ = table.efficiency([plan], np.zeros(len(tokens), dtype=np.int64), tokens)
        work = moe_work(
            dtype,
            tokens=tokens,
            hidden=key[0],
            intermediate=key[1],
            topk=key[2],
            experts=key[3],
            moe_tp=key[4],
            local_experts=local,
            gated=bool(key[6]),
        )
        light = seconds(rates, dtype, work.flop, work.bytes)
        if not plan.known:
            efficiency = table.transferred(plan, tokens, efficiency, light)
        predicted = light / efficiency
        errors.append(np.abs(predicted / (best["latency_ms"].to_numpy()[index] * 1e-3) - 1.0))
    return np.concatenate(errors) if errors else np.empty(0)


def moe_rows(accelerator: str, framework: str) -> Iterator[Row]:
    """Experts under even routing: held-out tokens, ep sizes, and whole shapes."""
    frame = moe.load_frame(accelerator, framework)
    if frame is None:
        return
    rates = load_accelerator(accelerator)
    for dtype in sorted(frame["moe_dtype"].unique()):
        rows = moe.clean_rows(frame, rates, dtype)
        rows = rows[~rows["uneven"]]
        rows = rows[rows["distribution"] == moe.BALANCED]
        if rows.empty:
            continue
        errors = [predict_moe(rows, held, rates, dtype) for held in folds(rows["num_tokens"])]
        yield Row("moe", "tokens", accelerator, framework, dtype, np.concatenate(errors))
        ep = rows["moe_ep_size"].to_numpy()
        errors = [predict_moe(rows, ep == size, rates, dtype) for size in HELD_EPS if (ep == size).any()]
        if errors:
            yield Row("moe", "ep", accelerator, framework, dtype, np.concatenate(errors))
        names = ["hidden_size", "inter_size", "topk", "num_experts"]
        shapes = rows.groupby(names).ngroup().to_numpy()
        if len(np.unique(shapes)) > 2:
            errors = [predict_moe(rows, shapes == shape, rates, dtype) for shape in np.unique(shapes)]
            yield Row("moe", "shape", accelerator, framework, dtype, np.concatenate(errors))


def collective_rows(accelerator: str, framework: str) -> Iterator[Row]:
    """Collectives: held-out message sizes, and the middle GPU count."""
    rates = load_accelerator(accelerator)
    op = "nccl" if framework == "nccl" else "custom_allreduce"
    frame = load_table(accelerator, framework, op)
    if frame is None:
        return
    if op == "nccl":
        parts = {
            ours: frame[(frame["op_name"] == theirs) & (frame["nccl_dtype"] == collectives.NCCL_DTYPE)]
            for ours, theirs in collectives.OPERATIONS.items()
        }
    else:
        parts = {"all_reduce": frame[~frame["kernel_source"].str.endswith("_eager")]}
    for operation, rows in parts.items():
        size = rows["message_size"].to_numpy()
        gpus = rows["num_gpus"].to_numpy()
        tests = {"message": list(folds(size))}
        if len(np.unique(gpus)) > 2:
            tests["gpus"] = [gpus == np.unique(gpus)[1]]
        for name, masks in tests.items():
            errors = [predict_collective(rows, held, rates, operation) for held in masks]
            yield Row(operation, name, accelerator, framework, "bfloat16", np.concatenate(errors))


def predict_collective(rows: pd.DataFrame, held: Mask, rates: Accelerator, operation: str) -> FloatArray:
    """Errors on the ``held`` rows, of the fastest kernel against the fastest."""
    table = collectives.CollectiveTable(rows[~held], rates, operation, own=True)
    best = rows[held].groupby(["num_gpus", "message_size"], as_index=False)["latency_ms"].min()
    errors = []
    for _, part in best.groupby("num_gpus"):
        size = part["message_size"].to_numpy(np.float64) * collectives.ELEMENT_BYTES
        count = float(part["num_gpus"].iloc[0])
        efficiency, _, _ = table(count, size)
        predicted = collectives.collective_light(rates, operation, size, count) / efficiency
        errors.append(np.abs(predicted / (part["latency_ms"].to_numpy() * 1e-3) - 1.0))
    return np.concatenate(errors)


def exchange_rows(accelerator: str, framework: str) -> Iterator[Row]:
    """Dispatch and combine: held-out tokens, and hidden sizes as a whole."""
    if framework == "nccl":
        return
    rates = load_accelerator(accelerator)
    family = expert_exchange.ExchangeFamily(rates, framework, rates)
    for phase in expert_exchange.PHASES:
        for low_latency in (True, False):
            for table in family.tables(phase, low_latency):
                if not table.own:
                    continue
                kernel = "low latency" if low_latency else "normal"
                for name, column in (("tokens", "tokens"), ("hidden", "hidden")):
                    masks = list(folds(getattr(table.rows, column)))
                    if masks:
                        errors = [predict_exchange(table, held) for held in masks]
                        yield Row(phase, name, accelerator, framework, kernel, np.concatenate(errors))


def predict_exchange(table: expert_exchange.ExchangeTable, held: Mask) -> FloatArray:
    """Errors on the ``held`` rows of a table built from the others, kernel by kernel."""
    errors = []
    for kernel in dict.fromkeys(table.rows.kernel):
        mine = np.flatnonzero(table.rows.kernel == kernel)
        rows, mask = take_rows(table.rows, mine), held[mine]
        if not mask.any() or mask.all():
            continue
        known, test = (take_rows(rows, np.flatnonzero(part)) for part in (~mask, mask))
        rest = expert_exchange.ExchangeTable(known, table.rates, table.low_latency, own=True)
        columns = [test.wire, test.hidden, test.topk, test.experts, test.ep, test.tokens]
        keys, which = distinct_keys(*columns[:5])
        for number, key in enumerate(keys):
            index = np.flatnonzero(which == number)
            of_plan = np.zeros(len(index), dtype=np.int64)
            efficiency, _ = rest.efficiency([rest.plan(key[:4], key[4])], of_plan, columns[5][index])
            light = expert_exchange.exchange_light(
                table.rates,
                tokens=columns[5][index],
                hidden=key[1],
                topk=key[2],
                ep=key[4],
                wire_bytes=key[0],
                low_latency=table.low_latency,
            )
            errors.append(np.abs(light / efficiency / test.seconds[index] - 1.0))
    return np.concatenate(errors) if errors else np.empty(0)


FAMILIES: dict[str, Callable[[str, str], Iterator[Row]]] = {
    "gemm": gemm_rows,
    "moe": moe_rows,
    "collectives": collective_rows,
    "exchange": exchange_rows,
}


def table_of(rows: Iterable[Row]) -> pd.DataFrame:
    """One line a test: points, median, mean and 90th percentile of the error in per cent."""
    return pd.DataFrame(
        {
            "family": row.family,
            "held out": row.held_out,
            "accelerator": row.accelerator,
            "framework": row.framework,
            "dtype or kernel": row.dtype,
            "points": len(row.errors),
            "median %": 100.0 * float(np.median(row.errors)),
            "mean %": 100.0 * float(np.mean(row.errors)),
            "p90 %": 100.0 * float(np.quantile(row.errors, 0.9)),
        }
        for row in rows
        if len(row.errors)
    )


def markdown(table: pd.DataFrame) -> str:
    """The table as Markdown."""
    names = list(table.columns)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for values in table.itertuples(index=False):
        cells = [f"{value:.1f}" if isinstance(value, float) else str(value) for value in values]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(
    quick: Annotated[bool, typer.Option(help="Only " + " and ".join(QUICK_ACCELERATORS))] = False,
    family: Annotated[list[str] | None, typer.Option(help="Families: " + ", ".join(FAMILIES))] = None,
    out: Annotated[Path | None, typer.Option(help="Write the medians over places here, as Markdown")] = None,
) -> None:
    """Print the errors of every family on held-out points."""
    places = sorted({(table.accelerator, table.framework) for table in tables()})
    found = [
        row
        for name in family or FAMILIES
        for place in places
        if not quick or place[0] in QUICK_ACCELERATORS
        for row in FAMILIES[name](*place)
    ]
    table = table_of(found)
    figures = ["points", "median %", "mean %", "p90 %"]
    summary, by_type = (
        table.groupby(keys, as_index=False, sort=False)[figures].agg(
            {"points": "sum", "median %": "median", "mean %": "median", "p90 %": "median"}
        )
        for keys in (["family", "held out"], ["family", "held out", "framework", "dtype or kernel"])
    )
    print(markdown(table))
    print("\nMedian over places and types\n")
    print(markdown(summary))
    if out is not None:
        out.write_text(markdown(summary) + "\n\n" + markdown(by_type) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
