"""From validation errors to problems in the user's own words: path, value, what is wrong, what would be right."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from afd_dse.errors import InputError, Problem
from afd_dse.spec.base import COMPLAINT
from afd_dse.spec.suggest import choose, closest

# What people write for a key of a job file that has another name here.
_SYNONYMS = {
    "backend": "framework",
    "engine": "framework",
    "sla": "slo",
    "hardware": "cluster",
    "isl": "input_tokens",
    "input_length": "input_tokens",
    "prompt_tokens": "input_tokens",
    "osl": "output_tokens",
    "output_length": "output_tokens",
    "gpu": "accelerator",
    "gpu_type": "accelerator",
    "sku": "accelerator",
    "gpus": "count",
    "num_gpus": "count",
    "itl": "tpot_ms",
    "itl_ms": "tpot_ms",
    "ttft": "ttft_ms",
    "tpot": "tpot_ms",
    "price": "usd_per_gpu_hour",
    "dtype": "quantization",
    "mtp": "speculative",
    "request_rate": "requests_per_s",
    # and for one of a deployment request
    "accelerator": "gpuSku",
    "gpuModel": "gpuSku",
    "gpuCount": "totalGpus",
    "numGpus": "totalGpus",
    "count": "totalGpus",
    "framework": "backend",
    "input_tokens": "isl",
    "output_tokens": "osl",
    "slo": "sla",
    "ttft_ms": "ttft",
    "tpot_ms": "itl",
    "request_latency_ms": "e2eLatency",
    "requests_per_s": "requestRate",
}
_MAX_SHOWN = 120  # characters of a value that a message repeats


def as_input_error(error: ValidationError, root: type[BaseModel], *, prefix: str = "") -> InputError:
    """All problems of a failed validation of ``root``; ``prefix`` stands before every path (``spec.``)."""
    found = [_problem(details, root) for details in error.errors(include_url=False) if not _is_echo(details)]
    return InputError([replace(problem, field=f"{prefix}{problem.field}") for problem in found])


def _is_echo(details: ErrorDetails) -> bool:
    """Whether an error only says that a list is too short because its elements failed."""
    return details["type"] == "too_short" and bool(details["input"])


def _problem(details: ErrorDetails, root: type[BaseModel]) -> Problem:
    location = details["loc"]
    context: dict[str, Any] = details.get("ctx", {})
    kind = details["type"]
    path = _path(location)
    value = shown_value(context.get("value", details["input"]))
    if kind == COMPLAINT:
        return Problem(_joined(path, context["field"]) or "job", value, context["message"], context["remedy"])
    if kind == "extra_forbidden":
        return Problem(path, value, "unknown key", _instead_of(str(location[-1]), location[:-1], root))
    field = _field(location, root)
    if kind == "missing":
        return Problem(path, None, "this is needed", _wanted(field, str(location[-1])))
    message, remedy = _explained(kind, context, details, field)
    return Problem(path or "job", value, message, remedy)


def _explained(
    kind: str, context: dict[str, Any], details: ErrorDetails, field: FieldInfo | None
) -> tuple[str, str]:
    names = [step for step in details["loc"] if isinstance(step, str) and not _is_tag(step)]
    wanted = _wanted(field, names[-1] if names else "")
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", str(context["expected"]))
        return "unknown value", choose(details["input"], choices)
    if kind in ("int_type", "int_from_float", "int_parsing"):
        return f"a whole number is needed, not {_kind_of(details['input'])}", wanted
    if kind in ("float_type", "float_parsing"):
        return f"a number is needed, not {_kind_of(details['input'])}", wanted
    if kind == "finite_number":
        return "a finite number is needed", wanted
    if kind == "string_type":
        return f"text is needed, not {_kind_of(details['input'])}", wanted
    if kind in ("string_too_short", "too_short"):
        return "this is empty", wanted
    if kind in ("tuple_type", "list_type"):
        return f"a list is needed, not {_kind_of(details['input'])}", wanted
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        models = _models(field.annotation) if field is not None else set()
        keys = ", ".join(sorted({name for model in models for name in _fields(model)}))
        remedy = f"write `key: value` lines with {keys}" if keys else wanted
        return f"a mapping is needed, not {_kind_of(details['input'])}", remedy
    for bound, words in (("gt", "greater than"), ("ge", "at least"), ("lt", "less than"), ("le", "at most")):
        if bound in context:
            limit = context[bound]
            return f"this must be {words} {f'{limit:g}' if limit < 1e5 else f'{limit:,.0f}'}", wanted
    return details["msg"][:1].lower() + details["msg"][1:], wanted


def _wanted(field: FieldInfo | None, name: str) -> str:
    """What a field wants: an example as the user would write it, and its own description."""
    if field is None:
        return "give another value"
    example = field.examples[0] if field.examples else field.get_default()
    has_example = example is not PydanticUndefined and isinstance(example, str | int | float | list | dict)
    shown = f"e.g. `{name}: {_as_yaml(example)}`" if has_example else ""
    first = re.split(r"(?<=[^.])\.(?:\s|$)", " ".join((field.description or "").split()), maxsplit=1)[0]
    return f"write {shown or 'another value'}" + (f" ({first})" if first else "")


def _as_yaml(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _instead_of(key: str, parents: tuple[int | str, ...], root: type[BaseModel]) -> str:
    here = list(dict.fromkeys(name for model in _walk(parents, root) for name in _fields(model)))
    everywhere = dict(_paths(root, ""))
    synonym = _SYNONYMS.get(key, "") or _SYNONYMS.get(key.casefold(), "")
    if synonym in here:
        return f"did you mean {synonym}?"
    if near := closest(key, here, count=1):
        return f"did you mean {near[0]}? Known here: {', '.join(here)}"
    for name in (key, synonym):
        homes = [path for path, known in everywhere.items() if known == name]
        if name and homes:
            return f"it belongs at {homes[0]}. Known here: {', '.join(here)}"
    return f"known here: {', '.join(here)}"


def _paths(model: type[BaseModel], prefix: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Every field of ``model`` and of its parts as (path, name)."""
    for name, field in _fields(model).items():
        path = f"{prefix}{name}"
        yield path, name
        mark = "[]" if "tuple" in str(field.annotation) else ""
        for part in _models(field.annotation) if depth < 4 else ():
            yield from _paths(part, f"{path}{mark}.", depth + 1)


def _walk(location: tuple[int | str, ...], root: type[BaseModel]) -> list[type[BaseModel]]:
    """Models that may stand at ``location``."""
    found: list[type[BaseModel]] = [root]
    for step in location:
        if isinstance(step, int) or _is_tag(step):
            continue
        fields = [_fields(model)[step] for model in found if step in _fields(model)]
        if not fields:  # the key of a mapping, whose values are the models at hand
            continue
        found = [part for field in fields for part in sorted(_models(field.annotation), key=str)]
    return found


def _field(location: tuple[int | str, ...], root: type[BaseModel]) -> FieldInfo | None:
    """The field at ``location``, the one that contains it for an element of a list or mapping."""
    steps = [step for step in location if isinstance(step, str) and not _is_tag(step)]
    found: FieldInfo | None = None
    models: list[type[BaseModel]] = [root]
    for step in steps:
        matches = [_fields(model)[step] for model in models if step in _fields(model)]
        if not matches:  # the key of a mapping, whose values are the models at hand
            continue
        found = matches[0]
        models = [part for match in matches for part in _models(match.annotation)]
    return found


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Fields of ``model`` by the names that users write."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _models(annotation: Any) -> set[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {model for part in get_args(annotation) for model in _models(part)}


def _is_tag(step: int | str) -> bool:
    """Whether a step names a branch of a union, which is no part of what the user wrote."""
    return isinstance(step, str) and step.startswith("<") and step.endswith(">")


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not _is_tag(step):
            path = _joined(path, step)
    return path


def _joined(path: str, below: str) -> str:
    return f"{path}{below}" if below.startswith("[") or not path or not below else f"{path}.{below}"


def shown_value(value: object) -> object:
    """``value`` where a message can repeat it, else a short form of it or None."""
    if isinstance(value, str):
        return value if len(value) <= _MAX_SHOWN else f"{value[:_MAX_SHOWN]}…"
    if isinstance(value, int) and not -(10**_MAX_SHOWN) < value < 10**_MAX_SHOWN:
        return "a very large number"
    if isinstance(value, dict | list | tuple):
        text = repr(value) if _count(value) < _MAX_SHOWN else ""
        return value if 0 < len(text) <= _MAX_SHOWN else None
    return None if isinstance(value, BaseModel) else value


def _count(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(_count(item) for item in value.values())
    return 1 + sum(_count(item) for item in value) if isinstance(value, list | tuple) else 1


def _kind_of(value: object) -> str:
    for kind, words in (
        (bool, "true or false"),
        (str, "text"),
        (int, "a whole number"),
        (float, "a fraction"),
        (dict, "a mapping"),
        (list, "a list"),
    ):
        if isinstance(value, kind):
            return words
    return "nothing" if value is None else type(value).__name__
