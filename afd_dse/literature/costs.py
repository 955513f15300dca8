"""Operator counts and what decoding costs at speed of light (Step-3, arXiv 2507.19427); weights against memory."""

import re
from collections.abc import Mapping
from dataclasses import replace

from afd_dse.architecture.model import ModelArchitecture, Quantization
from afd_dse.architecture.work import TokenWork, token_work
from afd_dse.cost import roofline
from afd_dse.errors import InputError, Problem
from afd_dse.literature.answer import Answer, evaluator
from afd_dse.literature.rows import Inputs, Row, finite, number
from afd_dse.literature.supply_bound import moe_of
from afd_dse.literature.units import BYTES, BYTES_PER_S, FLOPS, SECONDS, USD_PER_HOUR, named
from afd_dse.network import supply
from afd_dse.spec.catalogue import load_accelerator
from afd_dse.spec.profiles import PublishedHardware, load_profile

# The paper's: 8-bit weights and caches, 20 tokens a second and user, three stages in flight.
_PROFILE = "step3"
_TPOT_S = 0.050
_STAGES = 3
_WINDOWS = named(SECONDS, "window")
_CONTEXTS = [8192.0, 32768.0]
_PEAKS = named(FLOPS, "peak", "fp8", "bf16")
_BANDWIDTHS = named(BYTES_PER_S, "hbm")
_NAMES = ("hardware", "device", "accelerator")


def _eight_bit(model: ModelArchitecture) -> Quantization:
    return replace(model.quantization, gemm="fp8", moe="fp8", kv_cache="fp8")


def work_of(model: ModelArchitecture, context: float | list[float]) -> TokenWork:
    """Work of one token as the paper counts it: 8-bit cache, MLA's sum over the rotary part included."""
    return token_work(model, _eight_bit(model), context, latent_values=True)


@evaluator
def operator_counts(row: Row) -> Answer:
    """KV bytes (8-bit), attention, projection, FFN FLOP of a token at the first context; KV, attention at others."""
    stated = [number(text) for text in re.findall(r"\bat (\d+K?)\b", row.quantity)]
    contexts = row.inputs.numbers("contexts", "context", default=stated or _CONTEXTS)
    work = work_of(row.inputs.model(), contexts)
    found = [work.kv_bytes[0], work.attention_flop[0], work.projection_flop[0], work.ffn_flop[0]]
    for later in range(1, len(contexts)):
        found += [work.kv_bytes[later], work.attention_flop[later]]
    return Answer.of(*found, note=f"contexts of {', '.join(f'{c:,.0f}' for c in contexts)} tokens")


def _devices(inputs: Inputs) -> dict[str, PublishedHardware]:
    """Parts with peak, bandwidth and price: those that the row names or prices, the rest of them from the profile.

    Figures are mappings by part, or a number that holds for all parts named.
    """
    profile = load_profile(inputs.text("profile", default=_PROFILE))
    named_parts = inputs.texts("devices", *_NAMES) if any(map(inputs.has, ("devices", *_NAMES))) else []
    stated = {
        key: _by_part(inputs, units, named_parts)
        for key, units in (
            ("usd_per_gpu_hour", USD_PER_HOUR),
            ("peak_flops", _PEAKS),
            ("hbm_bytes_per_s", _BANDWIDTHS),
        )
    }
    priced = [name for figures in stated.values() for name in figures]
    found = {}
    for name in dict.fromkeys(named_parts or priced) or profile.hardware:
        own = {key: figures[name] for key, figures in stated.items() if name in figures}
        base = {} if len(own) == len(stated) else _part(inputs, name, "inputs.usd_per_hour").model_dump()
        found[name] = PublishedHardware(**(base | own | {"name": name}))
    return found


def _by_part(inputs: Inputs, units: Mapping[str, float], parts: list[str]) -> dict[str, float]:
    """One figure of each part in SI; nothing where the row does not state it."""
    name = next((name for name in units if inputs.has(name)), None)
    if name is None:
        return {}
    stated = inputs.raw(name)
    figures = stated if isinstance(stated, Mapping) else dict.fromkeys(parts, stated)
    if not figures:
        raise InputError(Problem(f"inputs.{name}", stated, "is of no part", "give {part: value}"))
    return {str(part): _figure(name, part, value) * units[name] for part, value in figures.items()}


def _part(inputs: Inputs, name: str, field: str) -> PublishedHardware:
    """A part as the row's profile counts it; as the catalogue does where the paper's own profile lacks it."""
    profile = load_profile(inputs.text("profile", default=_PROFILE))
    if inputs.has("profile") or profile.has(name):
        return profile.part(name, field)
    return PublishedHardware.of_catalogue(name, field)


def _figure(key: str, name: str, value: object) -> float:
    found = finite(value)
    if found is None or found <= 0:
        raise InputError(Problem(f"inputs.{key}.{name}", value, "is not a positive number", "give a number"))
    return found


def _attention_usd(work: TokenWork, device: PublishedHardware) -> float:
    if device.hbm_bytes_per_s is None or device.usd_per_gpu_hour is None:
        raise InputError(
            Problem(f"inputs.hbm_bytes_s.{device.name}", None, "is missing", "state bandwidth and price")
        )
    seconds = roofline.attention_seconds(work, device.peak_flops, device.hbm_bytes_per_s)
    return float(roofline.usd_per_mtok(seconds, device.usd_per_gpu_hour))


def _ffn_usd(work: TokenWork, device: PublishedHardware) -> float:
    if device.usd_per_gpu_hour is None:
        raise InputError(Problem(f"inputs.usd_per_hour.{device.name}", None, "is missing", "state its price"))
    return float(
        roofline.usd_per_mtok(roofline.ffn_seconds(work, device.peak_flops), device.usd_per_gpu_hour)
    )


@evaluator
def decode_cost(row: Row) -> Answer:
    """Dollars per million decoded tokens of attention or FFN on each device; or the rate of an exchange, Gb/s.

    Which part: ``inputs.part`` (attention, ffn, total) and ``inputs.context``, else as the description says.
    """
    inputs = row.inputs
    if any(map(inputs.has, _WINDOWS)):
        return _exchange(inputs)
    model, devices = inputs.model(), _devices(inputs)
    described = row.stated(r"\b(attention|ffn|total)\b")
    part = inputs.text("part", default=described.group(1) if described else "total").casefold()
    if part not in ("attention", "ffn", "total"):
        raise InputError(Problem("inputs.part", part, "is no part", "use attention, ffn or total"))
    context = _context(row)
    work = work_of(model, context)
    found = []
    for device in devices.values():
        attention = 0.0 if part == "ffn" else _attention_usd(work, device)
        found.append(attention + (0.0 if part == "attention" else _ffn_usd(work, device)))
    where = "" if part == "ffn" else f" at {context:,.0f} tokens"
    return Answer.of(*found, note=f"{part}{where} on {', '.join(devices)}")


def _context(row: Row) -> float:
    """The context in tokens: the row's, else as its description says, else the paper's first."""
    stated = row.stated(r"\b(\d+K?)\b(?=\s*(?:tokens|context|\(|,|$))")
    return row.inputs.positive("context", default=number(stated.group(1)) if stated else _CONTEXTS[0])


def _exchange(inputs: Inputs) -> Answer:
    tokens = sum(inputs.at_least_zero("tokens"))
    rate = supply.exchange_rate(
        tokens,
        inputs.whole("hidden"),
        inputs.positive("bytes_per_element"),
        inputs.scaled(_WINDOWS),
    )
    return Answer.of(float(rate) * 8e-9, note="Gb/s")


@evaluator
def best_decode_cost(row: Row) -> Answer:
    """Dollars per million tokens with attention and FFN each on the cheapest device for it, for each model."""
    inputs = row.inputs
    names = inputs.texts("models", "model")
    devices = _devices(inputs)
    context = _context(row)
    found, chosen = [], []
    for name in names:
        work = work_of(Inputs({"model": name}).model(), context)
        attention = {key: _attention_usd(work, device) for key, device in devices.items()}
        ffn = {key: _ffn_usd(work, device) for key, device in devices.items()}
        best = min(attention, key=attention.__getitem__), min(ffn, key=ffn.__getitem__)
        found.append(attention[best[0]] + ffn[best[1]])
        chosen.append(f"{name}: {best[0]} + {best[1]}")
    return Answer.of(*found, note="; ".join(chosen))


@evaluator
def min_sparsity(row: Row) -> Answer:
    """Smallest share of experts a token may use with experts still compute-bound on what the network brings."""
    inputs = row.inputs
    part = _part_of(row) if any(not any(map(inputs.has, units)) for units in (_PEAKS, _BANDWIDTHS)) else None
    peak = inputs.scaled(_PEAKS, default=part.peak_flops if part else None)
    bandwidth = inputs.scaled(_BANDWIDTHS, default=part.hbm_bytes_per_s if part else None)
    model = inputs.model() if inputs.has("model") else None
    dispatch = inputs.positive("dispatch_bytes", default=supply.DISPATCH_BYTES)
    combine = inputs.positive("combine_bytes", default=supply.COMBINE_BYTES)
    tpot = inputs.scaled(named(SECONDS, "tpot"), default=_TPOT_S)
    stages = inputs.whole("stages", default=_STAGES)
    layers = inputs.whole("layers", default=model.layers if model else None)
    budget = supply.stage_budget(tpot, layers, batches_in_flight=stages)
    found = supply.least_sparsity(
        roofline.compute_bound_batch(peak, bandwidth, weight_bytes=1.0),
        node_bytes_per_s=_node_rate(inputs),
        hidden=inputs.whole("hidden", default=model.hidden if model else None),
        budget_s=budget,
        dispatch_bytes=dispatch,
        combine_bytes=combine,
    )
    name = part.name if part else "as stated"
    return Answer.of(float(found), note=f"{name} at {tpot * 1e3:g} ms a token, {stages} stages")


def _part_of(row: Row) -> PublishedHardware:
    """The device: an input, else the first word of the description or of the row's name that is a known part."""
    inputs = row.inputs
    if any(map(inputs.has, _NAMES)):
        return _part(inputs, inputs.text(*_NAMES), "inputs.hardware")
    # NOTE: the published rows name the device in their id only.
    for word in re.findall(r"\w+", f"{row.quantity} {row.id}"):
        try:
            return _part(inputs, word, "inputs.hardware")
        except InputError:
            continue
    raise InputError(
        Problem("inputs.hardware", None, "is missing", "name the device, or state peak_flops and hbm_bytes_s")
    )


def _node_rate(inputs: Inputs) -> float:
    """Bytes/s of a node's NICs: from ``nics``, ``node_gb_s``, or ``nic_gb_s`` of each of ``nics_per_node`` (8)."""
    node, one = named(BYTES_PER_S, "node"), named(BYTES_PER_S, "nic", "scale_out")
    if any(map(inputs.has, one)):
        return inputs.scaled(one) * inputs.whole("nics_per_node", "gpus_per_node", default=8)
    return inputs.scaled(node) if any(map(inputs.has, node)) else inputs.nics("nics")


@evaluator
def stage_budget(row: Row) -> Answer:
    """Bytes a GPU reads in one stage of a layer, what is left for the cache, and the context that fits there."""
    inputs = row.inputs
    stated = any(map(inputs.has, _BANDWIDTHS))
    bandwidth = inputs.scaled(_BANDWIDTHS, default=None if stated else _part_of(row).hbm_bytes_per_s)
    total = bandwidth * inputs.scaled(named(SECONDS, "stage"))
    cache = total - inputs.scaled(named(BYTES, "linear_weight"))
    model = inputs.model(default="step-3")
    context = roofline.stage_context(model.kinds[-1], _eight_bit(model), max(cache, 0.0))
    return Answer.of(total, cache, float(context), note=f"bytes, bytes, tokens; 8-bit cache of {model.name}")


@evaluator
def ffn_utilisation(row: Row) -> Answer:
    """Tokens that make a GEMM compute-bound, those that an expert then sees, and the FFN's utilisation."""
    inputs = row.inputs
    full, experts, topk = _full_batch(inputs)
    share = roofline.expert_utilisation(full, full, experts, topk)
    return Answer.of(full, full * topk / experts, float(share))


@evaluator
def ffn_full_batch(row: Row) -> Answer:
    """Tokens in all that make every expert compute-bound."""
    full, experts, topk = _full_batch(row.inputs)
    return Answer.of(full * experts / topk)


def _full_batch(inputs: Inputs) -> tuple[float, int, int]:
    if inputs.has("experts") or inputs.has("num_experts"):
        experts, topk = inputs.whole("experts", "num_experts"), inputs.whole("topk", "top_k")
    else:
        moe = moe_of(inputs.model())
        experts, topk = moe.experts, moe.topk
    weight = inputs.positive("weight_bytes", default=2.0)
    part = load_accelerator(inputs.text(*_NAMES), "inputs.hardware") if any(map(inputs.has, _NAMES)) else None
    # NOTE: the paper computes in the type of the weights: eight bits at the eight-bit peak.
    kind = "fp8" if weight == 1.0 else "bfloat16"
    peak = inputs.scaled(_PEAKS, default=part.peak_flops.get(kind) if part else None)
    bandwidth = inputs.scaled(_BANDWIDTHS, default=part.hbm_bytes_per_s if part else None)
    return float(roofline.compute_bound_batch(peak, bandwidth, weight)), experts, topk


_COLUMNS = ["price", "GB", "GB/s", "bf16 TFLOPS"]


@evaluator
def best_device_per_role(row: Row) -> Answer:
    """The device with the most bandwidth (attention) and the most compute (experts) per cost."""
    inputs = row.inputs
    parts = _candidates(inputs)

    def figures(*words: str) -> dict[str, float]:
        return {name: _figure("candidates", name, _column(name, part, words)) for name, part in parts.items()}

    prices = figures("price", "usd")
    best = [
        roofline.best_per_price(figures(*words), prices)
        for words in (("gb/s", "gb_s", "tb/s", "tb_s"), ("flop",))
    ]
    return Answer.of(*best)


def _candidates(inputs: Inputs) -> dict[str, Mapping[str, object]]:
    """Figures of each candidate by column; names alone are the catalogue's parts at the row's prices."""
    stated = inputs.raw("candidates")
    if isinstance(stated, list):
        names = inputs.texts("candidates")
        prices = _by_part(inputs, USD_PER_HOUR, names)
        return {name: _catalogued(name, prices) for name in names}
    columns = inputs.raw("columns", default=_COLUMNS)
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        raise InputError(Problem("inputs.columns", columns, "is not a list of names", "name each figure"))
    found: dict[str, Mapping[str, object]] = {}
    for name, part in inputs.mapping("candidates").items():
        if not isinstance(part, Mapping) and (not isinstance(part, list) or len(part) != len(columns)):
            raise InputError(
                Problem(f"inputs.candidates.{name}", part, "does not fit the columns", "one a column")
            )
        found[name] = part if isinstance(part, Mapping) else dict(zip(columns, part, strict=True))
    return found


def _catalogued(name: str, prices: Mapping[str, float]) -> dict[str, object]:
    part = load_accelerator(name, "inputs.candidates")
    return {
        "price": prices.get(name, part.usd_per_gpu_hour),
        "GB/s": part.hbm_bytes_per_s * 1e-9,
        "TFLOPS": part.peak_flops["bfloat16"] * 1e-12,
    }


def _column(name: str, part: Mapping[str, object], words: tuple[str, ...]) -> object:
    """The figure of ``part`` whose column has one of ``words`` in its name."""
    for column, value in part.items():
        if any(word in column.casefold() for word in words):
            return value
    raise InputError(Problem(f"inputs.candidates.{name}", dict(part), f"states no {words[0]}", "add it"))


@evaluator
def throughput_identity(row: Row) -> Answer:
    """Tokens/s per GPU of M attention nodes and N FFN nodes from batch per attention GPU and step time."""
    inputs = row.inputs
    one = [inputs.raw(name) for name in ("M", "batch", "step_ms") if inputs.has(name)]
    points = [one] if len(one) == 3 else inputs.items("points")
    ffn = inputs.positive("N", default=_stated_number(row, "N", 1.0))
    found = []
    for index, point in enumerate(points):
        try:
            attention, batch, step_ms = Inputs({"point": point}).counts("point")
        except (InputError, ValueError):
            raise InputError(
                Problem(f"inputs.points[{index}]", point, "is not [M, batch, step ms]", "give three numbers")
            ) from None
        found.append(batch * attention / (attention + ffn) / (step_ms * 1e-3))
    return Answer.of(*found)


def _stated_number(row: Row, name: str, default: float) -> float:
    found = row.stated(rf"\b{name}\s*=\s*(\d+(?:\.\d+)?)")
    return float(found.group(1)) if found else default
