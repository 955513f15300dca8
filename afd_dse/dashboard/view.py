"""What is shown, as a link says it: only what differs from the defaults stands in the link."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode

from afd_dse.dashboard.data import LIMITS, Library
from afd_dse.report.metrics import METRICS, X_AXES, Y_AXES

_LIST = ","


@dataclass(frozen=True, slots=True)
class View:
    """Results shown, axes, limits (ms; None: none), prices and power by accelerator, pinned points (``key:row``)."""

    results: tuple[str, ...]
    x: str = X_AXES[0]
    y: str = Y_AXES[0]
    limits: Mapping[str, float | None] = field(default_factory=dict)
    front_only: bool = False
    prices: Mapping[str, float] = field(default_factory=dict)
    powers: Mapping[str, float] = field(default_factory=dict)
    pins: tuple[str, ...] = ()


def default_view(library: Library) -> View:
    """The first result under the limits that it was searched under, at its prices."""
    first = next(iter(library), None)
    limits = dict.fromkeys(LIMITS) if first is None else {name: first.slo[name] for name in LIMITS}
    known = library.accelerators()
    return View(
        () if first is None else (first.key,),
        limits=limits,
        prices={name: usd for name, (usd, _) in known.items()},
        powers={name: watts for name, (_, watts) in known.items()},
    )


def to_query(view: View, default: View) -> str:
    """``?x=…&tpot_ms=…`` with what differs from ``default``, empty where nothing does."""
    found: list[tuple[str, str]] = []
    if view.results != default.results:
        found.append(("results", _LIST.join(view.results)))
    found += [
        (name, getattr(view, name)) for name in ("x", "y") if getattr(view, name) != getattr(default, name)
    ]
    for name in LIMITS:
        value = view.limits.get(name)
        if value != default.limits.get(name):
            found.append((name, "none" if value is None else f"{value:.6g}"))
    if view.front_only != default.front_only:
        found.append(("front", "1"))
    for kind in ("prices", "powers"):
        values, usual = getattr(view, kind), getattr(default, kind)
        found += [
            (f"{kind}.{name}", f"{value:.6g}") for name, value in values.items() if value != usual.get(name)
        ]
    if view.pins:
        found.append(("pin", _LIST.join(view.pins)))
    return f"?{urlencode(found, safe=':,')}" if found else ""


def from_query(query: str, default: View, library: Library) -> View:
    """The view of a link; what it does not say, or says of results that are not there, is as in ``default``."""
    given = dict(parse_qsl(query.removeprefix("?")))
    results = tuple(key for key in given.get("results", "").split(_LIST) if key in library.datasets)
    limits = {
        name: _limit(given[name], default.limits.get(name)) if name in given else default.limits.get(name)
        for name in LIMITS
    }
    x, y = given.get("x", default.x), given.get("y", default.y)
    return View(
        results or default.results,
        x if x in METRICS else default.x,
        y if y in METRICS else default.y,
        limits,
        given.get("front", "") == "1" or default.front_only,
        _numbers(given, "prices", default.prices),
        _numbers(given, "powers", default.powers),
        tuple(pin for pin in given.get("pin", "").split(_LIST) if _is_pin(pin, library))[:2],
    )


def _limit(text: str, usual: float | None) -> float | None:
    return None if text == "none" else _number(text, usual)


def _number(text: str, usual: float | None) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return usual
    return value if 0.0 < value < float("inf") else usual


def _numbers(given: Mapping[str, str], kind: str, usual: Mapping[str, float]) -> dict[str, float]:
    found = {name: _number(given.get(f"{kind}.{name}", ""), value) for name, value in usual.items()}
    return {name: usual[name] if value is None else value for name, value in found.items()}


def _is_pin(text: str, library: Library) -> bool:
    key, _, row = text.partition(":")
    return key in library.datasets and row.isdecimal() and int(row) < len(library.datasets[key].points)


def split_pin(pin: str, library: Library) -> tuple[str, int] | None:
    """Key and row of a pin, None where there is no such candidate."""
    if not _is_pin(pin, library):
        return None
    key, _, row = pin.partition(":")
    return key, int(row)


def toggled(pins: Sequence[str], pin: str) -> list[str]:
    """``pins`` without ``pin`` where it is among them, else with it; two at most, the older one goes."""
    if pin in pins:
        return [other for other in pins if other != pin]
    return [*pins, pin][-2:]
