"""Reading the operator database: one table, what tables there are, where they come from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import cast

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from afd_dse.errors import DatabaseError
from afd_dse.operators.table_schema import SCHEMAS
from afd_dse.resources import operator_db_root, parse_yaml_documents

PROVENANCE_FILE = "provenance.yaml"
# What leaves no row out.
ALL_ROWS: Mapping[str, str] = MappingProxyType({})
_TEXT = pa.dictionary(pa.int32(), pa.string())
_REMEDY = "rebuild the store with `afd-dse db import`"


@dataclass(frozen=True, slots=True)
class StoredTable:
    """One table file: what it holds and how large it is."""

    accelerator: str
    framework: str
    op: str
    rows: int
    bytes: int


def table_path(accelerator: str, framework: str, op: str, root: Path | None = None) -> Path:
    """File of a table, whether or not it exists; ``root`` is the operator database's folder."""
    return (root or operator_db_root()) / "tables" / accelerator / framework / f"{op}.parquet"


def has_table(accelerator: str, framework: str, op: str) -> bool:
    """Whether somebody measured ``op`` there; nothing is read."""
    return table_path(accelerator, framework, op).is_file()


def load_table(
    accelerator: str,
    framework: str,
    op: str,
    root: Path | None = None,
    *,
    only: Mapping[str, str] = ALL_ROWS,
) -> pd.DataFrame | None:
    """Table of ``op``, None where nobody measured it; text as str, counts as int64, measurements as float64.

    ``only`` the rows whose columns have the values given: most of the time goes into rows that nobody asks for. Cached:
    the caller gets a shallow copy, whose columns it may replace. Raises :class:`DatabaseError` for an operator that no
    schema declares and for a file that is damaged.
    """
    if op not in SCHEMAS:
        raise DatabaseError(f"no table schema for operator {op!r}; there are {', '.join(sorted(SCHEMAS))}")
    table = _rows(table_path(accelerator, framework, op, root), op, tuple(only.items()))
    return None if table is None else table.copy(deep=False)


@lru_cache(maxsize=256)
def _rows(path: Path, op: str, only: tuple[tuple[str, str], ...]) -> pd.DataFrame | None:
    table = _read(path, op)
    if table is None:
        return None
    for name, value in only:
        table = table.filter(pc.equal(table[name], value))
    plain = [column.cast(pa.string()) if column.type == _TEXT else column for column in table.columns]
    frame: pd.DataFrame = pa.table(plain, names=table.column_names).to_pandas(use_threads=False)
    return frame


@lru_cache(maxsize=256)
def _read(path: Path, op: str) -> pa.Table | None:
    if not path.is_file():
        return None
    schema = SCHEMAS[op]
    try:
        metadata = pq.read_metadata(path)
        if missing := [name for name in schema.columns if name not in metadata.schema.names]:
            raise DatabaseError(f"{path}: operator table lacks {', '.join(missing)}; {_REMEDY}")
        # Text stays numbered until rows are left out: four times cheaper to read.
        file = pq.ParquetFile(path, metadata=metadata, read_dictionary=schema.text)
        table = file.read(columns=list(schema.columns), use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise DatabaseError(f"{path}: damaged operator table ({error}); {_REMEDY}") from error
    types = dict.fromkeys(schema.text, _TEXT)
    types |= {name: pa.int64() for name in schema.integers}
    types |= {name: pa.float64() for name in schema.measured}
    try:
        columns = [table[name].cast(types[name]) for name in schema.columns]
    except pa.ArrowException as error:
        raise DatabaseError(
            f"{path}: operator table has a column of the wrong type ({error}); {_REMEDY}"
        ) from error
    return pa.table(columns, names=list(schema.columns))


def tables(root: Path | None = None) -> list[StoredTable]:
    """Every table of the store, sorted by accelerator, framework and operator."""
    folder = (root or operator_db_root()) / "tables"
    if not folder.is_dir():
        raise DatabaseError(f"{folder}: the operator database has no tables; {_REMEDY}")
    return [_describe(path) for path in sorted(folder.glob("*/*/*.parquet"))]


def _describe(path: Path) -> StoredTable:
    try:
        rows = pq.read_metadata(path).num_rows
    except (OSError, pa.ArrowException) as error:
        raise DatabaseError(f"{path}: damaged operator table ({error}); {_REMEDY}") from error
    return StoredTable(path.parent.parent.name, path.parent.name, path.stem, rows, path.stat().st_size)


def provenance(root: Path | None = None) -> Mapping[str, object]:
    """Content of ``provenance.yaml``: package, version, licence, hashes and, per file, its sources."""
    return {key: value for part in _provenance(root) for key, value in part.items()}


def package() -> Mapping[str, object]:
    """The package that the tables come from: the first document of ``provenance.yaml``, all others unread."""
    found = next(_provenance(None), {}).get("package")
    return cast("Mapping[str, object]", found) if isinstance(found, dict) else {}


def _provenance(root: Path | None) -> Iterator[Mapping[str, object]]:
    """The documents of ``provenance.yaml``, one after the other: what it is, and every table."""
    path = (root or operator_db_root()) / PROVENANCE_FILE
    try:
        for content in parse_yaml_documents(path.read_text(encoding="utf-8")):
            if not isinstance(content, dict):
                raise DatabaseError(f"{path}: provenance is not a mapping; {_REMEDY}")
            yield cast("Mapping[str, object]", content)
    except (OSError, yaml.YAMLError) as error:
        raise DatabaseError(f"{path}: unreadable provenance ({error}); {_REMEDY}") from error
