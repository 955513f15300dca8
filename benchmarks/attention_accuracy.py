"""Leave-one-out error of the attention families on their measured points: ``python benchmarks/attention_accuracy.py``.

Every second interior point of an axis is taken out, the surfaces are built from the rest and asked for it; then the
other half. The error is |predicted / measured - 1| of latencies, in per cent, over points inside the grid.
"""

import argparse
from collections.abc import Iterator

import numpy as np
import pandas as pd

from afd_dse.operators import dsa, linear_attention, mla
from afd_dse.operators.attention import HEADS, KV_HEADS, AttentionTable, Rates, attention_table, blend_keys
from afd_dse.operators.block import BlockDtypes
from afd_dse.operators.latency import FloatArray, IntArray
from afd_dse.operators.surfaces import Blend, Surfaces
from afd_dse.spec.catalogue import load_accelerator

ACCELERATORS = ("h100_sxm", "h200_sxm", "b200_sxm", "gb200")
FRAMEWORKS = ("trtllm", "sglang", "vllm")


def _rank(group: IntArray, value: FloatArray) -> tuple[IntArray, IntArray]:
    """Rank of each row's value among the distinct values of its group, and how many there are."""
    pairs, inverse = np.unique(np.stack([group.astype(np.float64), value]), axis=1, return_inverse=True)
    counts = np.unique(pairs[0], return_counts=True)[1]
    start = np.repeat(np.cumsum(counts) - counts, counts)
    rank = np.arange(pairs.shape[1]) - start
    return rank[inverse.reshape(-1)], np.repeat(counts, counts)[inverse.reshape(-1)]


def leave_out(surfaces: Surfaces, axis: str) -> FloatArray:
    """Relative errors of interior points along ``axis`` (``u`` or ``v``)."""
    key, u, v, measured, kernel = surfaces.key, surfaces.u, surfaces.v, surfaces.measured, surfaces.kernel
    if axis == "v":
        columns = np.unique(np.stack([key.astype(np.float64), u]), axis=1, return_inverse=True)[1].reshape(-1)
        rank, count = _rank(columns, v)
    else:
        rank, count = _rank(key, u)
    errors = []
    for parity in (0, 1):
        out = (rank % 2 == parity) & (rank > 0) & (rank < count - 1)
        if not out.any():
            continue
        rest = Surfaces(key[~out], u[~out], v[~out], measured[~out], kernel[~out], surfaces.light)
        asked = out & np.isin(key, rest.keys_present)
        alone = Blend(
            key[asked][:, None], np.ones((int(asked.sum()), 1)), np.zeros(int(asked.sum()), dtype=np.int8)
        )
        estimate = rest(alone, u[asked], v[asked])
        light = surfaces.light(key[asked], u[asked], v[asked])
        errors.append(np.abs(light / estimate.efficiency / measured[asked] - 1.0))
    return np.concatenate(errors) if errors else np.zeros(0)


def leave_key_out(table: AttentionTable, split: int) -> FloatArray:
    """Relative errors of whole keys (head counts) taken out, over every tenth point of 256 tokens and more."""
    surfaces, errors = table.surfaces, []
    for key in surfaces.keys_present:
        rows = np.flatnonzero((surfaces.key == key) & (surfaces.v >= 256))[::10]
        if not len(rows):
            continue
        wanted = np.repeat(table.keys[[key]].astype(np.float64), len(rows), axis=0)
        others = surfaces.keys_present[surfaces.keys_present != key]
        blend, own_window = blend_keys(table, wanted, True, split, others)
        capped = np.minimum(surfaces.v[rows], np.where(wanted[:, 1] > 0.0, wanted[:, 1], np.inf))
        estimate = surfaces(blend, surfaces.u[rows], np.where(own_window, surfaces.v[rows], capped))
        light = surfaces.light(surfaces.key[rows], surfaces.u[rows], surfaces.v[rows])
        seconds = np.maximum(light / estimate.efficiency, estimate.floor)
        errors.append(np.abs(seconds / surfaces.measured[rows] - 1.0))
    return np.concatenate(errors)


def families(accelerator: str, framework: str) -> Iterator[tuple[str, Surfaces]]:
    """Every attention table of an accelerator and framework, with the commonest types."""
    rates = Rates.of(load_accelerator(accelerator))
    for op in ("generation_attention", "context_attention"):
        for kv in ("bfloat16", "fp8"):
            table = attention_table(rates, framework, op, "bfloat16", kv)
            if table is not None:
                yield op, table.surfaces
    dtypes = BlockDtypes("fp8_block", "bfloat16", "fp8")
    for op in ("mla_generation_module", "mla_context_module"):
        module = mla.module_table(rates, framework, op, dtypes)
        if module is not None:
            yield op, module.surfaces
    for op in ("generation_mla", "context_mla"):
        kernel = mla.kernel_table(rates, framework, op, dtypes)
        if kernel is not None:
            yield op, kernel.surfaces
    hidden, dims = dsa.MODELS["deepseek-ai/DeepSeek-V3.2"]
    for op in ("dsa_generation_module", "dsa_context_module"):
        sparse = dsa.dsa_table(rates, framework, op, dims, hidden, dtypes)
        if sparse is not None:
            yield op, sparse.surfaces
    for phase in ("generation", "context"):
        delta = linear_attention.gdn_table(rates, framework, phase)
        if delta is not None:
            yield f"gdn {phase}", delta.surfaces


def _errors(accelerator: str, framework: str) -> Iterator[pd.DataFrame]:
    for op, surfaces in families(accelerator, framework):
        for axis, name in (("v", "length"), ("u", "batch")):
            errors = leave_out(surfaces, axis)
            yield pd.DataFrame({"op": op, "framework": framework, "axis": name, "error": errors * 100})
    for op, split in (("generation_attention", KV_HEADS), ("context_attention", HEADS)):
        table = attention_table(Rates.of(load_accelerator(accelerator)), framework, op, "bfloat16", "fp8")
        if table is not None:
            errors = leave_key_out(table, split)
            yield pd.DataFrame(
                {"op": f"{op} (key)", "framework": framework, "axis": "heads", "error": errors * 100}
            )


def main() -> None:
    """Print the errors by operator and framework as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accelerators", nargs="+", default=list(ACCELERATORS))
    chosen = parser.parse_args().accelerators
    found = pd.concat(
        [frame for name in chosen for framework in FRAMEWORKS for frame in _errors(name, framework)]
    )
    print("| operator | framework | left out | points | median % | 90th % |")
    print("|---|---|---|---|---|---|")
    for by in (["op", "framework", "axis"], ["op"]):
        for names, group in found.groupby(by):
            labels = [str(name) for name in names] if len(by) > 1 else [str(names[0]), "all", "all"]
            median, high = group["error"].quantile([0.5, 0.9])
            print(f"| {' | '.join(labels)} | {len(group)} | {median:.2f} | {high:.1f} |")


if __name__ == "__main__":
    main()
