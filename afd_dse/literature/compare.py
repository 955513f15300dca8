"""Whether our values agree with published ones: numbers within a tolerance, choices, orders, feasibility."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from afd_dse.literature.answer import Answer, Value
from afd_dse.literature.names import alike
from afd_dse.literature.rows import Row

_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_SCALED = re.compile(
    rf"^(?:total\s+)?[~≈]?\s*({_NUMBER})\s*(%|x|×|K|[kMGT]?B|us|ms|s|tok/s(?:/GPU)?|USD)?(?:\s*\(.*\))?$",
    re.IGNORECASE,
)
_FACTORS = {"k": 1e3, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_SPLIT = re.compile(r"(\d+)\s*A\s*\+?\s*(\d+)\s*F")
_COUNTED = re.compile(r"^(.*?)\s+on\s+(most|all|\d+ of \d+)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Published:
    """One published item: a number with the digits behind its point, or words."""

    text: str
    number: float | None
    decimals: int

    @classmethod
    def of(cls, text: str) -> "Published":
        """Read an item; ``235 MB`` is 235e6, ``328K`` 328e3, ``+4.5%`` 4.5."""
        found = _SCALED.match(text)
        if found is None:
            return cls(text, None, 0)
        digits = found.group(1)
        factor = _FACTORS.get((found.group(2) or "").lower(), 1.0)
        mantissa = digits.lower().split("e")[0]
        return cls(text, float(digits) * factor, len(mantissa.partition(".")[2]))


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far ours may be from a published number."""

    absolute: float = 0.0
    relative: float = 0.0
    factor: float = 0.0
    exact: bool = False

    @classmethod
    def of(cls, text: str) -> "Tolerance":
        """Read ``0.01 abs``, ``5% relative``, ``factor 2``, ``0.005``, ``exact``; words alone mean exact."""
        percent = re.search(rf"({_NUMBER})\s*%", text)
        factor = re.search(rf"factor\s*({_NUMBER})", text)
        if factor:
            return cls(factor=float(factor.group(1)))
        if percent:
            return cls(relative=float(percent.group(1)) / 100.0)
        plain = re.search(rf"({_NUMBER})", text)
        return cls(absolute=float(plain.group(1))) if plain else cls(exact=True)

    def admits(self, ours: float, published: Published) -> bool:
        """Whether ``ours`` is near enough; exact means to the digits that are published."""
        wanted = published.number
        if wanted is None or not math.isfinite(ours):
            return False
        if self.exact:
            rounding = 0.5 * 10.0**-published.decimals if published.decimals else 0.0
            return abs(ours - wanted) <= rounding + 1e-9 * max(abs(wanted), 1.0)
        if self.factor:
            return wanted / self.factor <= ours <= wanted * self.factor
        # Rounding in binary must not decide at the edge of a tolerance.
        return abs(ours - wanted) <= max(self.absolute, self.relative * abs(wanted)) + 1e-12


def items(expected: str) -> list[Published]:
    """The published items: separated by semicolons, lists of numbers by commas too."""
    found: list[Published] = []
    for part in (text.strip() for text in expected.split(";")):
        listed = [Published.of(piece.strip()) for piece in part.split(",")]
        found.extend(listed if all(item.number is not None for item in listed) else [Published.of(part)])
    return found


def judge(row: Row, answer: Answer) -> tuple[bool, str]:
    """Whether ``answer`` agrees with what the row expects, and the differences in words."""
    wanted = items(row.expected)
    if not wanted or not row.expected:
        return False, "the row expects nothing"
    if len(answer.values) < len(wanted):
        return False, f"{len(wanted)} values are published, ours are {len(answer.values)}"
    pairs = list(zip(wanted, answer.values, strict=False))
    directional = "direction" in row.tolerance or (row.kind == "direction" and "factor" not in row.tolerance)
    if directional and "%" in row.tolerance:
        return _steps_and_total(row, pairs)
    tolerance = Tolerance.of(row.tolerance)
    verdicts = [_agrees(published, ours, tolerance) for published, ours in pairs]
    return all(verdicts), "; ".join(_difference(published, ours) for published, ours in pairs)


def _steps_and_total(row: Row, pairs: Sequence[tuple[Published, Value]]) -> tuple[bool, str]:
    """Every step in the published direction, the last value (the total) within the tolerance."""
    tolerance = Tolerance.of(row.tolerance)
    signs = all(
        published.number is not None and isinstance(ours, float) and ours * published.number > 0
        for published, ours in pairs
    )
    total = _agrees(pairs[-1][0], pairs[-1][1], tolerance)
    return signs and total, "; ".join(_difference(published, ours) for published, ours in pairs)


def _agrees(published: Published, ours: Value, tolerance: Tolerance) -> bool:
    if published.number is not None and isinstance(ours, str):
        # Ours says in words what equals what, the number behind it: ``= copy time (0.5)``.
        behind = re.search(rf"\(({_NUMBER})\)$", ours)
        ours = float(behind.group(1)) if behind else ours
    if isinstance(ours, float):
        return tolerance.admits(ours, published)
    if ">" in published.text:
        return _same_order(published.text, ours)
    splits = _SPLIT.search(published.text), _SPLIT.search(ours)
    if splits[0] and splits[1]:
        return _heavy(splits[0]) == _heavy(splits[1])
    counted = _COUNTED.match(published.text), _COUNTED.match(ours)
    if counted[0] and counted[1]:
        return _same_name(counted[0].group(1), counted[1].group(1)) and _as_often(
            counted[0].group(2), counted[1].group(2)
        )
    return _words(published.text) == _words(ours)


def _same_order(published: str, ours: str) -> bool:
    """Whether the names that both know stand in the same order; at least two must."""
    mine = [alike(_words(name)) for name in ours.split(">")]
    theirs = [alike(_words(name)) for name in published.split(">")]
    common = [name for name in theirs if name in mine]
    return len(common) >= 2 and common == [name for name in mine if name in theirs]


def _heavy(split: re.Match[str]) -> int:
    """-1 FFN-heavy, 1 attention-heavy, 0 equal."""
    attention, ffn = int(split.group(1)), int(split.group(2))
    return (attention > ffn) - (attention < ffn)


def _same_name(published: str, ours: str) -> bool:
    return _words(published).split(" ")[0] == _words(ours).split(" ")[0]


def _as_often(published: str, ours: str) -> bool:
    """``3 of 6`` against ``most`` or ``all``."""
    counts = re.match(r"(\d+) of (\d+)", ours)
    if counts is None:
        return published.lower() == ours.lower()
    share = int(counts.group(1)) / max(int(counts.group(2)), 1)
    return share == 1.0 if published.lower() == "all" else share > 0.5


def _words(text: str) -> str:
    """Words alone: no case, no bracket with a number in it, single blanks."""
    plain = re.sub(r"\([^)]*\d[^)]*\)", "", text.casefold())
    return " ".join(plain.split())


def _difference(published: Published, ours: Value) -> str:
    if isinstance(ours, str) or published.number is None:
        return f"{ours} for {published.text}"
    if published.number == 0:
        return f"{ours:.4g} for 0"
    return f"{ours:.4g} for {published.text} ({100.0 * (ours / published.number - 1.0):+.2g} %)"
