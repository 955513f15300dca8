"""Units in which rows state quantities: at the end of an input's name, or behind its value."""

import re
from collections.abc import Mapping

SECONDS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
BYTES: Mapping[str, float] = {"bytes": 1.0, "mb": 1e6, "gb": 1e9, "mib": 2.0**20, "gib": 2.0**30}
BYTES_PER_S: Mapping[str, float] = {
    "gb_s": 1e9, "tb_s": 1e12, "bytes_s": 1.0, "bytes_per_s": 1.0, "gb_per_s": 1e9, "gbps": 1e9 / 8.0,
    "gbit_s": 1e9 / 8.0,
}  # fmt: skip
FLOPS: Mapping[str, float] = {"tflops": 1e12, "flops": 1.0, "pflops": 1e15, "gflops": 1e9}
USD_PER_HOUR: Mapping[str, float] = {
    "usd_per_hour": 1.0,
    "usd_per_gpu_hour": 1.0,
    "price": 1.0,
    "prices": 1.0,
}

# NOTE: a small b is a bit, so case counts.
_WRITTEN = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0,
    "MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30,
    "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "Gb/s": 1e9 / 8.0, "Gbps": 1e9 / 8.0, "Gbit/s": 1e9 / 8.0,
    "GFLOPS": 1e9, "TFLOPS": 1e12, "PFLOPS": 1e15, "TFLOP/s": 1e12, "PFLOP/s": 1e15,
}  # fmt: skip
_QUANTITY = re.compile(r"\s*(\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*([A-Za-zµ/]+)\s*")


def named(units: Mapping[str, float], *stems: str) -> dict[str, float]:
    """Names that a quantity may have, each with its unit in SI: ``{"hbm_gb_s": 1e9, "hbm_tb_s": 1e12, …}``."""
    return {f"{stem}_{end}": factor for stem in stems for end, factor in units.items()}


def written(value: object) -> float | None:
    """A quantity with its unit behind it, in SI: ``"864 GB/s"`` is 864e9; None for anything else."""
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if found is None or found.group(2) not in _WRITTEN:
        return None
    return float(found.group(1).replace(",", "")) * _WRITTEN[found.group(2)]
