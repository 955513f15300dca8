"""Shell scripts that start engines: one a role, told which engine and which of its nodes it is on."""

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from afd_dse.launch.placement import Place
from afd_dse.launch.plan import Engine

Option = tuple[str, ...]
"""An option of a command line and its value, if it takes one."""


IN_FOLDER = 'cd "$(dirname "$0")"'
"""Go where the script lies."""


class Expression(str):
    """A word that the shell is to expand, in quotes where it must stay one word."""


def option(name: str, value: object) -> Option:
    """``name`` with ``value``: mappings as JSON."""
    return (name, json.dumps(value) if isinstance(value, dict) else str(value))


def flag(name: str, on: bool) -> list[Option]:
    """A switch, where it is ``on``."""
    return [(name,)] if on else []


def degree(name: str, value: int) -> list[Option]:
    """A degree of parallelism, where there is any."""
    return [option(name, value)] if value > 1 else []


def command(words: Iterable[str], options: Iterable[Option]) -> str:
    """A command with an option a line."""
    lines = [_line(words), *(_line(one) for one in options)]
    return " \\\n  ".join(lines)


def _line(words: Iterable[str]) -> str:
    return " ".join(word if isinstance(word, Expression) else shlex.quote(word) for word in words)


def script(
    name: str, engine: Engine, places: Sequence[Place], lines: Sequence[str], *, heads: bool = False
) -> str:
    """A script for the engines of a role, run on all their nodes, or on ``heads`` alone.

    ``lines`` find the engine's number in ``ENGINE``, that of the node in ``RANK``, addresses of the engine's nodes in
    ``HOSTS``, the address of the first in ``HEAD`` and of this one in ``HERE``, and how many engines lie before it on
    its nodes in ``NUMBER``.
    """
    last, alone = engine.replicas - 1, heads or engine.nodes == 1
    hosts = " ".join(shlex.quote(" ".join(place.hosts)) for place in places)
    gpus = " ".join(",".join(str(gpu) for gpu in place.gpus) for place in places)
    where = "" if alone else f" and RANK 0 to {engine.nodes - 1}, on every node"
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# {engine.words[0].upper()}{engine.words[1:]}. Start with: bash {name} ENGINE{'' if alone else ' RANK'}",
            f"# with ENGINE 0 to {last}{where}.",
            "set -euo pipefail",
            f"ENGINE=${{1:?number of the engine, 0 to {last}}}",
            *([] if alone else [f"RANK=${{2:?number of the node in the engine, 0 to {engine.nodes - 1}}}"]),
            f"NODES=({hosts})",
            f"GPUS=({gpus})",
            f"NUMBERS=({' '.join(str(place.number) for place in places)})",
            'read -ra HOSTS <<< "${NODES[ENGINE]}"',
            f"HEAD=${{HOSTS[0]}} HERE=${{HOSTS[{'0' if alone else 'RANK'}]}} NUMBER=${{NUMBERS[ENGINE]}}",
            "export CUDA_VISIBLE_DEVICES=${GPUS[ENGINE]}",
            *lines,
            "",
        ]
    )


def router(words: Sequence[str], options: Sequence[Option], package: str = "") -> str:
    """The script of what requests go to, in the folder of its files; ``package`` is what brings it."""
    from_pip = f"; pip install {package}" if package else ""
    lines = [
        "#!/usr/bin/env bash",
        f"# Requests go here{from_pip}",
        "set -euo pipefail",
        IN_FOLDER,
        command(["exec", *words], options),
        "",
    ]
    return "\n".join(lines)


def yaml_text(*documents: Any) -> str:
    """Documents as YAML: keys in their order, no aliases, texts of several lines as they are."""
    return str(yaml.dump_all(documents, Dumper=_Readable, sort_keys=False, width=1000))


class _Readable(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _text)
