"""How the tokens of a job fall on experts: a measured table's own draw, a power law, or an observed histogram."""

import csv
import io
import math
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo

from afd_dse.errors import InputError, Problem
from afd_dse.spec.base import Spec, absolute, complain_about

MeasuredDistribution = Literal["uniform", "balanced", "power_law_1.01", "power_law_1.2"]

# AFORE (arXiv 2610.03203) measures max/mean loads of 1.70 as placed, 1.42 balanced by past routing and 1.10 balanced by
# the routing at hand: the past tells (1.70 − 1.42) / (1.70 − 1.10) of what there is to gain.
DEFAULT_PERSISTENCE = 0.47


def _histogram_file(text: str, info: ValidationInfo) -> str:
    path = absolute(text, info)
    try:
        read_histogram(path)
    except InputError as error:
        raise complain_about(error) from None
    return str(path)


class _Skew(Spec):
    persistence: float = Field(DEFAULT_PERSISTENCE, ge=0, le=1, examples=[DEFAULT_PERSISTENCE])
    """How much of the skew past routing tells (0 to 1): what the expert policy `history` can balance."""


class PowerLaw(_Skew):
    """Popularity of experts by a power law, on ranks that know nothing of it unless a policy says so."""

    kind: Literal["power_law"] = Field(examples=["power_law"])
    """The i-th most popular expert gets a share proportional to i^−exponent."""
    exponent: float = Field(ge=0, le=4, examples=[0.6])
    """0 is even; 1 is Zipf's law."""


class Histogram(_Skew):
    """Popularity of experts as observed."""

    histogram: Annotated[
        str, Field(min_length=1, examples=["expert_tokens.csv"]), AfterValidator(_histogram_file)
    ]
    """CSV file with a column `tokens`, one row an expert, relative to the job file."""


def _form(value: object) -> str:
    if isinstance(value, Histogram) or (isinstance(value, dict) and "histogram" in value):
        return "<histogram>"
    return "<power law>" if isinstance(value, dict | PowerLaw) else "<name>"


ExpertDistribution = Annotated[
    Annotated[MeasuredDistribution, Tag("<name>")]
    | Annotated[PowerLaw, Tag("<power law>")]
    | Annotated[Histogram, Tag("<histogram>")],
    Discriminator(_form),
]


def read_histogram(path: Path, field: str = "histogram") -> tuple[float, ...]:
    """Tokens of every expert in a CSV file; raises :class:`InputError` naming ``field`` when it is not usable."""
    remedy = "give a CSV file with a column tokens and one row an expert"
    try:
        state = path.stat()
        return _read(path, state.st_mtime_ns, state.st_size, field, remedy)
    except FileNotFoundError:
        raise InputError(Problem(field, str(path), "the histogram does not exist", remedy)) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(Problem(field, str(path), f"unreadable histogram ({error})", remedy)) from error


@lru_cache(maxsize=32)
def _read(path: Path, modified: int, size: int, field: str, remedy: str) -> tuple[float, ...]:
    rows = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig")), skipinitialspace=True)
    if "tokens" not in (rows.fieldnames or ()):
        found = ", ".join(rows.fieldnames or ()) or "nothing"
        raise InputError(Problem(field, str(path), f"no column tokens among {found}", remedy))
    tokens = [_count(row["tokens"], number, path, field) for number, row in enumerate(rows, start=1)]
    if not tokens or sum(tokens) <= 0:
        raise InputError(Problem(field, str(path), "no expert has any tokens", remedy))
    return tuple(tokens)


def _count(text: object, number: int, path: Path, field: str) -> float:
    try:
        value = float(str(text))
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        message = f"expert {number}: tokens is {text!r}"
        raise InputError(
            Problem(field, str(path), message, "give a number that is not negative in every row")
        )
    return value
