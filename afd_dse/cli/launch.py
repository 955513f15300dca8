"""The command ``launch``: files that start a deployment of a result, written or printed."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from afd_dse.launch.api import LaunchFiles, best_run, launch_files
from afd_dse.results.words import not_run


def read(
    source: Path,
    mode: str | None,
    rank: int | None,
    target: str | None,
    checkpoint: str | None,
    hosts: Path | None,
) -> LaunchFiles:
    """The files for a deployment of the result at ``source``; absent ``mode`` and ``rank``, the best that is run.

    Raises :class:`InputError` for what is no result, lacks the deployment, or cannot be launched so.
    """
    from afd_dse.cli.inputs import read_deployment
    from afd_dse.launch.placement import read_hosts
    from afd_dse.results.result import read_result

    document = read_result(source).document
    pools = [pool["name"] for pool in document["job"]["cluster"]["pools"]]
    addresses = None if hosts is None else read_hosts(hosts, pools)
    chosen = best_run(document, target) if mode is None and rank is None else None
    deployment = read_deployment(str(source), mode, rank) if chosen is None else chosen
    found = launch_files(document, deployment, target=target, checkpoint=checkpoint, hosts=addresses)
    if chosen is None or chosen is document["best"]:
        return found
    answer, other = (f"{one['label']} ({one['mode']})" for one in (document["best"], chosen))
    note = f"{not_run(found.target, answer)}: this is {other}, the best listed that it runs"
    return replace(found, warnings=(note, *found.warnings))


def write(found: LaunchFiles, out: Path) -> list[Path]:
    """Write all files into the folder ``out``, scripts executable."""
    from afd_dse.results.files import write_files

    written = write_files(out, {name: text.encode() for name, text in found.files.items()})
    for path in written:
        if path.suffix == ".sh":
            path.chmod(0o755)
    return written


def show(found: LaunchFiles, written: Sequence[Path]) -> None:
    """Print where the files lie, or the files themselves; what it takes on stderr."""
    if written:
        sys.stdout.write(f"{written[0].parent}: {', '.join(path.name for path in written)}\n")
        sys.stdout.write("README.md says what to start where.\n")
    else:
        for name, text in found.files.items():
            sys.stdout.write(f"==> {name} <==\n{text}\n")
    for title, items in (("takes", found.conditions), ("note", found.warnings)):
        for item in items:
            sys.stderr.write(f"{title}: {item}\n")
