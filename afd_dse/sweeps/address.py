"""What a result depends on, as a digest: the job with the content of its files, the package, its data."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from afd_dse import __version__
from afd_dse.errors import InputError
from afd_dse.resources import operator_db_root, search_spaces_root
from afd_dse.search.space import load_space
from afd_dse.spec.job import Job

_FORMAT = 1
_DIGITS = 32  # 128 bits: no two jobs of any sweep share an address
# Rooms that show results but don't compute them: their code may change without making a result stale.
_SHOWING = ("cli", "dashboard", "report", "_data")
# Where a sampled search keeps its trials, not what it searches.
_PLACES = ("journal", "storage")
_OF_MODEL = ("config.json", "hf_quant_config.json")


@lru_cache(maxsize=1)
def fingerprint() -> dict[str, str]:
    """Version and code of the package, operator database and search spaces, each as a digest of its content."""
    package = Path(__file__).resolve().parents[1]
    code = [p for p in package.rglob("*.py") if p.relative_to(package).parts[0] not in _SHOWING]
    return {
        "version": str(__version__),
        "code": _tree(package, code),
        "operator_db": _tree(operator_db_root(), _files(operator_db_root())),
        "search_spaces": _tree(search_spaces_root(), _files(search_spaces_root())),
    }


def address(job: Job) -> str:
    """Digest (32 hexadecimal digits) of everything that the answer to ``job`` depends on.

    A file that the job names counts by its content, not by its path, so that the same job has the same address wherever
    it lies. Where a sampled search keeps its trials does not count.
    """
    document = job.model_dump(mode="json")
    search = {name: value for name, value in document["search"].items() if name not in _PLACES}
    content = _by_content(document | {"search": search})
    text = json.dumps([_FORMAT, fingerprint(), content, _start_of(job)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _start_of(job: Job) -> str:
    """Content of the smaller space that the job's own search space starts from."""
    path = job.search.space_path
    if path.is_relative_to(search_spaces_root()):
        return ""
    try:
        start = load_space(path).start
        return "" if start is None else load_space(start).model_dump_json()
    except InputError:
        return ""  # the search will say what is wrong with it


def _by_content(value: Any) -> Any:
    """``value`` with a digest of the content in place of every absolute path of a file or of a model's folder."""
    if isinstance(value, Mapping):
        return {key: _by_content(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_by_content(item) for item in value]
    if isinstance(value, str) and value.startswith("/"):
        found = list(_read_with(Path(value)))
        return [_digest(path) for path in found] or value
    return value


def _read_with(path: Path) -> Iterator[Path]:
    """The files that are read where a job names ``path``."""
    if path.is_dir():
        yield from (path / name for name in _OF_MODEL if (path / name).is_file())
    elif path.is_file():
        yield path
        beside = path.with_name(path.name.replace(*_OF_MODEL))
        if beside != path and beside.is_file():
            yield beside


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _tree(root: Path, files: list[Path]) -> str:
    """Digest of names and contents of files below ``root``."""
    named = sorted((path.relative_to(root).as_posix(), path) for path in files)
    found = hashlib.sha256()
    for name, path in named:
        found.update(f"{name}\0{_digest(path)}\n".encode())
    return found.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
