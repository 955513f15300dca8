"""The catalogues of models and accelerators, as data and as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from afd_dse.architecture.catalogue import catalogue_entry, load_model, model_names
from afd_dse.architecture.model import ModelArchitecture
from afd_dse.architecture.work import parameters
from afd_dse.cli.cards import console, facts, heading, plain_table
from afd_dse.errors import InputError
from afd_dse.results import words
from afd_dse.results.breakdown import kind_words
from afd_dse.spec.catalogue import accelerator_aliases, accelerator_names, load_accelerator

_GIB = 2.0**30


def model_list() -> list[dict[str, Any]]:
    """Every catalogued model: name, aliases, size, data types."""
    return [
        {**_model(load_model(name)), "aliases": list(catalogue_entry(name).aliases)} for name in model_names()
    ]


def model_detail(reference: str) -> dict[str, Any]:
    """One model: by catalogue name or alias, or from a ``config.json``; :class:`InputError` when unknown."""
    model = load_model(reference)
    found = _model(model)
    try:
        entry = catalogue_entry(model.name)
    except InputError:
        return found | {"aliases": [], "source": "the configuration given"}
    return found | {"aliases": list(entry.aliases), "source": entry.published.source}


def _model(model: ModelArchitecture) -> dict[str, Any]:
    total, active = parameters(model)
    q = model.quantization
    return {
        "name": model.name,
        "family": model.family,
        "parameters": total,
        "active_parameters": active,
        "layers": model.layers,
        "kinds": [kind_words(kind) for kind in model.kinds],
        "hidden": model.hidden,
        "vocabulary": model.vocabulary,
        "next_token_layers": model.next_token_layers,
        "quantization": {"gemm": q.gemm, "moe": q.moe, "attention": q.attention, "kv_cache": q.kv_cache},
    }


def print_models(rows: Sequence[Mapping[str, Any]]) -> None:
    """The list of models."""
    out = console()
    table = plain_table(
        "model", "size", "active", "layers", "attention", "FFN", "weights", right=("size", "active")
    )
    table.padding = (0, 1, 0, 0)
    table.columns[0].no_wrap = True
    for row in rows:
        q = row["quantization"]
        types = q["gemm"] if q["gemm"] == q["moe"] else f"experts {q['moe']}"
        size, active = words.parameters(row["parameters"]), words.parameters(row["active_parameters"])
        attention, ffn = zip(*(kind.split(" × ")[1].split(" + ") for kind in row["kinds"]), strict=True)
        table.add_row(
            row["name"],
            size,
            active,
            str(row["layers"]),
            ", ".join(dict.fromkeys(attention)),
            # The layers that matter: a few dense ones before the experts go without saying.
            next((name for name in ffn if name.startswith("MoE")), ffn[0]),
            Text(types, "dim"),
        )
    out.print(table)
    out.print(
        Text("A job's model may also be the path of a Hugging Face config.json or its content inline.", "dim")
    )


def print_model(row: Mapping[str, Any]) -> None:
    """One model in full."""
    out = console()
    heading(out, row["name"])
    q = row["quantization"]
    lines = [
        ("family", row["family"]),
        (
            "size",
            f"{words.parameters(row['parameters'])}, {words.parameters(row['active_parameters'])} active",
        ),
        ("layers", "\n".join(row["kinds"])),
        ("hidden", f"{row['hidden']:,}"),
        ("vocabulary", f"{row['vocabulary']:,}"),
        (
            "drafting",
            f"{row['next_token_layers']} next-token (MTP) layers" if row["next_token_layers"] else "none",
        ),
        ("data types", ", ".join(f"{role} {dtype}" for role, dtype in q.items())),
        ("also named", ", ".join(row["aliases"]) or "–"),
        ("source", row["source"]),
    ]
    facts(out, lines)


def accelerator_list() -> list[dict[str, Any]]:
    """Every catalogued accelerator with its rates in the units of data sheets."""
    aliases = accelerator_aliases()
    found = []
    for name in accelerator_names():
        a = load_accelerator(name)
        found.append(
            {
                "name": name,
                "aliases": list(aliases[name]),
                "generation": a.generation,
                "tables": a.tables,
                "efficiency_from": a.efficiency_from,
                "peak_tflops": {dtype: peak / 1e12 for dtype, peak in a.peak_flops.items()},
                "hbm_gib": a.hbm_bytes / _GIB,
                "hbm_gb_s": a.hbm_bytes_per_s / 1e9,
                "scale_up_gpus": a.scale_up_gpus,
                "scale_up_gb_s": a.scale_up_bytes_per_s / 1e9,
                "scale_out_gb_s": a.scale_out_bytes_per_s / 1e9,
                "node_gpus": a.node_gpus,
                "power_w": a.power_w,
                "usd_per_gpu_hour": a.usd_per_gpu_hour,
                "source": a.source,
            }
        )
    return found


def print_accelerators(rows: Sequence[Mapping[str, Any]]) -> None:
    """The list of accelerators."""
    out = console()
    numeric = (
        "bf16\nTFLOP/s",
        "fp8\nTFLOP/s",
        "fp4\nTFLOP/s",
        "HBM\nGiB",
        "HBM\nGB/s",
        "scale-up\nGPUs × GB/s",
        "scale-out\nGB/s",
        "$/h",
    )
    table = plain_table("accelerator", *numeric, "tables", right=numeric)
    table.padding = (0, 1, 0, 0)
    for row in rows:
        peaks = row["peak_tflops"]
        table.add_row(
            Text(row["name"], "bold"),
            *(f"{peaks[dtype]:,.0f}" if dtype in peaks else "–" for dtype in ("bfloat16", "fp8", "fp4")),
            f"{row['hbm_gib']:.0f}",
            f"{row['hbm_gb_s']:,.0f}",
            f"{row['scale_up_gpus']} × {row['scale_up_gb_s']:,.0f}",
            f"{row['scale_out_gb_s']:,.0f}",
            f"{row['usd_per_gpu_hour']:.2f}",
            Text("measured", "green") if row["tables"] else Text(f"as {row['efficiency_from']}", "yellow"),
        )
    out.print(table)
    out.print(
        Text("Dense peaks; bandwidths per GPU and direction. Any of it can be changed in a job.", "dim")
    )
