"""Writing an answer: all files of a folder or none of them."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from afd_dse.errors import InputError, Problem
from afd_dse.results.result import Result
from afd_dse.results.table import front_table

RESULT, FRONT, CANDIDATES, REPORT = "result.json", "pareto.csv", "candidates.parquet", "report.html"
STAGING = ".afd-dse-"
"""Start of the names of folders in which files are written before they are renamed."""


def write_result(result: Result, directory: str | Path, page: str | None = None) -> list[Path]:
    """Write ``result.json``, ``pareto.csv``, ``candidates.parquet`` and, given its text, ``report.html``.

    Everything is rendered first and every file replaced as a whole; on an error the folder is left as it was. Returns
    the paths. Raises :class:`InputError` when the folder cannot be written.
    """
    contents: dict[str, bytes] = {
        RESULT: result.to_json().encode() + b"\n",
        FRONT: front_table(result.candidates).to_csv(index=False).encode(),
        CANDIDATES: result.candidates.to_parquet(index=False),
    }
    if page is not None:
        contents[REPORT] = page.encode()
    return write_files(directory, contents)


def write_files(directory: str | Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write files into a folder, each replaced as a whole, all or none; the paths.

    Raises :class:`InputError` when the folder cannot be written.
    """
    folder = Path(directory).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _replace_all(folder, contents)
    except OSError as error:
        message = f"cannot be written ({error.strerror or error})"
        raise InputError(
            Problem("--out", str(folder), message, "give a folder that you may write to")
        ) from error


def check_folder(directory: str | Path) -> None:
    """Raise :class:`InputError` where results could not be written, so that no search runs in vain."""
    remedy = "give the path of a folder"
    try:
        folder = Path(directory).expanduser()
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # a name that no file can have, a user that is not known
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(Problem("--out", str(directory), f"cannot be a path ({reason})", remedy)) from error
    if not nearest.is_dir():
        raise InputError(Problem("--out", str(folder), f"{nearest} is a file", remedy))
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(Problem("--out", str(folder), f"{nearest} is not writable", "give another folder"))


def _replace_all(folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write every file under another name first, so that a full disk spoils nothing, then rename them."""
    with tempfile.TemporaryDirectory(prefix=STAGING, dir=folder) as name:
        staging = Path(name)
        for file, content in contents.items():
            (staging / file).write_bytes(content)
        for file in contents:
            if (folder / file).is_dir():
                raise IsADirectoryError(None, f"{file} is a folder", str(folder / file))
        for file in contents:
            (staging / file).replace(folder / file)
    return [folder / file for file in contents]
