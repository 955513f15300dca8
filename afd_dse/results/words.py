"""Numbers for people: as many digits as say something, no exponents. For text only, never for what is computed with."""

import math
from collections.abc import Mapping


def number(value: float | None) -> str:
    """Three to four digits: ``1,235``, ``41.2``, ``0.0312``; ``unbounded`` where a value has no bound."""
    if value is None or not math.isfinite(value):
        return "unbounded"
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    return "0" if size == 0 else f"{value:#.3g}" if size >= 1e-4 else f"{value:.1e}"


# A time that has no bound counts as a billion seconds: no limit that somebody sets is missed by so many times itself.
UNBOUNDED = 1e6


def percent(share: float) -> str:
    """``37 %``, ``0.4 %``, ``1,240 %``; ``share`` as a fraction, any sign."""
    value = abs(share) * 100.0
    if value == 0.0:
        return "0 %"
    if value >= 9.95:
        return f"{value:,.0f} %"
    return f"{value:.1f} %" if value >= 0.095 else f"{value:.1g} %" if value >= 1e-3 else "less than 0.001 %"


def missed(slack: float) -> str:
    """By how much a limit is missed, given its negative slack as a fraction of it: ``37 % over``, or without bound."""
    return "without bound" if slack < -UNBOUNDED else f"{percent(slack)} over"


def signed_percent(share: float) -> str:
    """A change: ``+5.1 %``, ``−44 %``; ``share`` as a fraction."""
    value = 100.0 * share
    text = f"{abs(value):.0f}" if abs(value) >= 9.95 else f"{abs(value):.1f}"
    return f"{'−' if value < 0.0 and float(text) else '+'}{text} %"


def count(value: float) -> str:
    """A large count in words of the trade: ``74.7 billion``, ``2.40 million``, ``4,096``."""
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{value / size:.3g} {word}"
    return f"{value:,.0f}"


def parameters(value: float) -> str:
    """A number of parameters: ``671B``, ``8.0B``, ``560M``."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= size:
            scaled = value / size
            return f"{scaled:.0f}{letter}" if scaled >= 99.5 else f"{scaled:.1f}{letter}"
    return f"{value:,.0f}"


def not_run(framework: str, what: str = "it") -> str:
    """That nothing which has been released can run ``what``."""
    return f"no release of {framework} runs {what} today"


def constraint(name: str) -> str:
    """A constraint as text has it."""
    return "GPUs" if name == "gpus" else name


_ROLES = {"gemm": "GEMM", "moe": "experts", "attention": "attention", "kv_cache": "KV"}


def types_words(types: Mapping[str, str | None]) -> str:
    """Data types by role: ``GEMM nvfp4, KV fp8``."""
    return ", ".join(f"{_ROLES[role]} {dtype}" for role, dtype in types.items())


def types_short(types: Mapping[str, str | None]) -> str:
    """The same, as labels have it: ``nvfp4, KV fp8`` where GEMMs and experts are alike."""
    alike = "moe" in types and types.get("gemm") == types["moe"]
    rest = {role: dtype for role, dtype in types.items() if not (alike and role in ("gemm", "moe"))}
    return ", ".join([*([str(types["moe"])] if alike else []), *([types_words(rest)] if rest else [])])


def moment(hours: float) -> str:
    """A time of a plan: ``day 3, 14:00``; ``hours`` since its start."""
    minutes = round(hours * 60.0)
    return f"day {minutes // 1440 + 1}, {minutes // 60 % 24:02d}:{minutes % 60:02d}"
