"""Reading YAML and JSON documents into plain mappings, lists and scalars, strictly and with positions in errors."""

import json
import math
import numbers
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import yaml

from afd_dse.errors import InputError, Problem

MAX_BYTES = 16 * 2**20  # a job with an inline model is a few kB; anything near this is another kind of file
_TOO_DEEP = ("the document is nested too deeply", "a job has at most a few levels")
# Python refuses to convert integers of thousands of digits.
_TOO_LONG = ("a whole number has too many digits", "write it with an exponent, or mend it")
MAX_NODES = 200_000  # after expansion of aliases, so that a few lines cannot stand for billions of values


def read_document(path: Path) -> dict[str, Any]:
    """Read the mapping that a YAML or JSON file holds, whatever its suffix.

    Raises :class:`InputError` for a missing, unreadable or binary file, for a syntax error (with line and column),
    a repeated key, and for a document that is not a mapping.
    """
    return parse_document(read_text(path), str(path))


def parse_document(text: str, name: str) -> dict[str, Any]:
    """As :func:`read_document`, from the text of a document that messages call ``name``."""
    if not text.strip():
        _fail(name, None, "the file is empty", "write a job with at least model, cluster and workload")
    try:
        data = _parse(text, name)
    except RecursionError:
        _fail(name, None, *_TOO_DEEP)
    if not isinstance(data, dict):
        shown = data if isinstance(data, str | int | float | bool) else None
        kind = _kind(data)
        remedy = "write `key: value` lines, starting with model, cluster and workload"
        _fail(name, shown, f"a mapping is needed, not {kind}", remedy)
    return plain(data, name)


def plain(data: Mapping[Any, Any], name: str = "job") -> dict[str, Any]:
    """Copy of nested mappings and sequences as dict and list, numbers as int and float.

    Raises :class:`InputError` where a key is not text.
    """
    problems: list[Problem] = []
    try:
        copied = _plain(data, "", problems)
    except RecursionError:
        _fail(name, None, *_TOO_DEEP)
    if problems:
        raise InputError(problems)
    assert isinstance(copied, dict), name
    return copied


def _plain(value: Any, path: str, problems: list[Problem]) -> Any:
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                where = path or "(top level)"
                problems.append(
                    Problem(where, key, "a key must be text", "put the key in quotes, or mend it")
                )
        return {
            key: _plain(item, f"{path}.{key}" if path else str(key), problems) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{index}]", problems) for index, item in enumerate(value)]
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return str(value) if isinstance(value, Path) else value


def read_text(path: Path, remedy: str = "give the path of a YAML or JSON file") -> str:
    """The text of a file. Raises :class:`InputError` where it is missing, no text, or larger than what people write."""
    try:
        if path.is_dir():
            _fail(str(path), None, "this is a folder", remedy)
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        near = _siblings(path)
        _fail(str(path), None, "the file does not exist", f"did you mean {near}?" if near else remedy)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        _fail(str(path), None, f"the file cannot be read ({reason})", remedy)
    if len(content) > MAX_BYTES:
        _fail(
            str(path), None, f"the file is larger than {MAX_BYTES // 2**20} MiB, too large for a job", remedy
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _fail(str(path), None, f"the file is not UTF-8 text (byte {error.start})", remedy)
    if "\0" in text:
        _fail(str(path), None, "the file is binary", remedy)
    return text


def _siblings(path: Path) -> str:
    from afd_dse.spec.suggest import closest

    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix in (".yaml", ".yml", ".json")]
    except OSError:
        return ""
    return ", ".join(str(path.parent / name) for name in closest(path.name, names, count=2))


def _parse(text: str, name: str) -> Any:
    if text.lstrip()[0] in "{[":
        try:
            return json.loads(text, object_pairs_hook=_unique)
        except json.JSONDecodeError as error:
            if name.endswith(".json"):
                place = f"{name}:{error.lineno}:{error.colno}"
                _fail(place, None, f"malformed JSON ({error.msg})", "mend the file at this line and column")
        except _RepeatedKeyError as error:
            _fail(name, error.key, "the key stands twice in one mapping", "keep one of them")
        except ValueError:
            _fail(name, None, *_TOO_LONG)
    try:
        return _load_yaml(text, name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        _fail(place, None, f"malformed YAML ({reason})", "mend the file at this line and column")
    except yaml.YAMLError as error:
        _fail(name, None, f"malformed YAML ({' '.join(str(error).split())})", "mend the file")
    except ValueError:
        _fail(name, None, *_TOO_LONG)


class _RepeatedKeyError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _RepeatedKeyError(key)
        found[key] = value
    return found


class _Loader(yaml.SafeLoader):
    """YAML 1.2 core scalars: 1e3 is a number, `on` and 2024-01-01 are text, 1:30 is not 90, 010 is ten."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("merge", r"<<", "<"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = node.value.lower()
    base = 8 if text.startswith("0o") else 16 if text.startswith("0x") else 10
    return int(text[2:] if base != 10 else text, base)


def _real(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = node.value.lower()
    return float(text.replace(".inf", "inf")) if "inf" in text else math.nan if "nan" in text else float(text)


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _real)


def _load_yaml(text: str, name: str) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node, name)
        _check_keys(node, name, set())
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _check_size(root: yaml.Node, name: str) -> None:
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        if id(node) in open_nodes:
            _fail(name, None, "an alias stands inside its own anchor", "write the value out")
        if id(node) not in sizes:
            open_nodes.add(id(node))
            sizes[id(node)] = 1 + sum(size(child) for child in _children(node))
            open_nodes.remove(id(node))
        return sizes[id(node)]

    if size(root) > MAX_NODES:
        _fail(name, None, "the document is too large", f"a job has less than {MAX_NODES} values")


def _check_keys(node: yaml.Node, name: str, seen: set[int]) -> None:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
                continue
            if key.value in keys:
                mark = key.start_mark
                place = f"{name}:{mark.line + 1}:{mark.column + 1}"
                _fail(place, key.value, "the key stands twice in one mapping", "keep one of them")
            keys.add(key.value)
    for child in _children(node):
        _check_keys(child, name, seen)


def _kind(data: object) -> str:
    if data is None:
        return "an empty document"
    return "a list" if isinstance(data, list) else "a single value"


def _fail(field: str, value: object, message: str, remedy: str) -> NoReturn:
    raise InputError(Problem(field, value, message, remedy))
