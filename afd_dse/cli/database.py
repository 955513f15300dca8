"""The operator database at the command line: what is in it, whether it is sound, and rebuilding it."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from afd_dse.cli.cards import console, facts, heading, paragraph, plain_table
from afd_dse.cli.progress import waiting
from afd_dse.errors import InputError, Problem
from afd_dse.operators import store
from afd_dse.operators.check import check_store
from afd_dse.operators.importer import PACKAGE, PACKAGE_VERSION, fetch_wheel, import_tables
from afd_dse.operators.table_schema import SCHEMAS
from afd_dse.resources import operator_db_root
from afd_dse.spec.suggest import closest

_MB = 1e6
_SHOWN = 6  # rows faster than light that the terminal lists; --json has them all


def table_list() -> dict[str, Any]:
    """Every table with rows and bytes, and where the store comes from."""
    rows = [
        {"table": f"{t.accelerator}/{t.framework}/{t.op}", "rows": t.rows, "bytes": t.bytes}
        for t in store.tables()
    ]
    return {"package": dict(store.package()), "tables": rows}


def print_tables(document: Mapping[str, Any]) -> None:
    """Rows by operator and accelerator, one table a framework."""
    out = console()
    rows = document["tables"]
    cells = {tuple(row["table"].split("/")): row["rows"] for row in rows}
    accelerators = sorted({key[0] for key in cells})
    for framework in sorted({key[1] for key in cells}):
        heading(out, framework, "measured points by operator and accelerator")
        table = plain_table("operator", *accelerators, right=accelerators)
        for op in sorted({key[2] for key in cells if key[1] == framework}):
            counts = (cells.get((accelerator, framework, op)) for accelerator in accelerators)
            table.add_row(op, *("–" if found is None else f"{found:,}" for found in counts))
        out.print(table)
    out.print()
    total, size = sum(row["rows"] for row in rows), sum(row["bytes"] for row in rows) / _MB
    out.print(f"{len(rows)} tables, {total:,} points, {size:.1f} MB. {_source(document['package'])}")


def _source(package: object) -> str:
    if not isinstance(package, Mapping):
        return ""
    return f"From {package.get('name')} {package.get('version')} ({package.get('licence')})."


def table_detail(name: str) -> dict[str, Any]:
    """Columns and ranges of one table; :class:`InputError` when there is no such table."""
    known = {f"{t.accelerator}/{t.framework}/{t.op}": t for t in store.tables()}
    if name not in known:
        raise InputError(Problem("TABLE", name, "no such table", _nearest(name, list(known))))
    entry = known[name]
    frame = store.load_table(entry.accelerator, entry.framework, entry.op)
    assert frame is not None
    schema = SCHEMAS[entry.op]
    columns: list[dict[str, Any]] = []
    for column in schema.columns:
        values = frame[column]
        role = "measured" if column in schema.measured else "axis" if column in schema.axes else "key"
        if column in schema.text:
            listed = sorted(values.unique())
            columns.append({"column": column, "role": role, "values": listed})
        else:
            columns.append(
                {
                    "column": column,
                    "role": role,
                    "distinct": int(values.nunique()),
                    "least": float(values.min()),
                    "most": float(values.max()),
                }
            )
    files = store.provenance().get("tables")
    origin = files.get(f"tables/{name}.parquet") if isinstance(files, Mapping) else None
    return {
        "table": name,
        "rows": entry.rows,
        "bytes": entry.bytes,
        "series": len(frame[list(schema.series)].drop_duplicates()),
        "columns": columns,
        "provenance": origin,
    }


def _nearest(name: str, known: Sequence[str]) -> str:
    """The nearest names, or how to see all: there are too many to list."""
    everything = "`afd-dse db list` shows what there is"
    near = closest(name, known)
    return f"did you mean {' or '.join(near)}? {everything}" if near else everything


def print_table(document: Mapping[str, Any]) -> None:
    """One table in full."""
    out = console()
    heading(out, document["table"], f"{document['rows']:,} points in {document['series']:,} series")
    table = plain_table("column", "role", "range or values", "distinct", right=("distinct",))
    for column in document["columns"]:
        if "values" in column:
            table.add_row(
                column["column"], column["role"], ", ".join(column["values"]), str(len(column["values"]))
            )
        else:
            span = f"{column['least']:,.6g} … {column['most']:,.6g}"
            table.add_row(column["column"], column["role"], span, f"{column['distinct']:,}")
    out.print(table)
    origin = document["provenance"]
    if isinstance(origin, Mapping):
        heading(out, "Source")
        for source in origin.get("sources", ()):
            paragraph(out, str(source))


def check(models: Sequence[str], with_coverage: bool) -> dict[str, Any]:
    """The verdict on the whole store, and how far it carries ``models`` (none given: the catalogued ones)."""
    with waiting("checking every table"):
        report = check_store()
    table: list[dict[str, str]] = []
    if with_coverage:
        with waiting("looking up every model on every accelerator"):
            table = _coverage(models)
    fast = report.faster_than_light
    return {
        "ok": report.ok,
        "defects": list(report.defects),
        "coverage": table,
        "tables": [
            {
                "table": f"{t.accelerator}/{t.framework}/{t.op}",
                "rows": t.rows,
                "bytes": t.bytes,
                "defects": list(t.defects),
                "faster_than_light": t.faster_than_light,
                "steps": t.steps,
                "falls": t.falls,
            }
            for t in report.tables
        ],
        "faster_than_light": [
            {str(key): value for key, value in row.items()} for row in fast.to_dict(orient="records")
        ],
    }


def _coverage(models: Sequence[str]) -> list[dict[str, str]]:
    from afd_dse.architecture.catalogue import load_model, model_names
    from afd_dse.operators.coverage import coverage
    from afd_dse.operators.table_schema import ACCELERATORS
    from afd_dse.spec.catalogue import load_accelerator

    names = list(models) or [name for name in model_names() if not name.startswith("nvidia/")]
    found = coverage([load_model(name) for name in names], [load_accelerator(name) for name in ACCELERATORS])
    return [{str(key): str(value) for key, value in row.items()} for row in found.to_dict(orient="records")]


_MARKS = {
    "measured": ("●", "green"),
    "borrowed": ("◐", "yellow"),
    "speed of light": ("○", "red"),
    "-": ("", ""),
}


def _print_coverage(rows: Sequence[Mapping[str, str]]) -> None:
    """One line a model and framework; per accelerator the weakest origin among the operator families it needs."""
    out = console()
    accelerators = list(dict.fromkeys(row["accelerator"] for row in rows))
    heading(
        out,
        "Coverage",
        "● all measured, ◐ some kernel borrowed, ○ some by speed of light; --json lists families",
    )
    table = plain_table("model", "framework", *accelerators)
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        families = [row[name] for name in row if name not in ("model", "accelerator", "framework")]
        weakest = max(
            families, key=lambda origin: ["-", "measured", "borrowed", "speed of light"].index(origin)
        )
        cells.setdefault((row["model"], row["framework"]), {})[row["accelerator"]] = weakest
    models = list(dict.fromkeys(row["model"] for row in rows))
    for (model, framework), found in sorted(cells.items(), key=lambda item: models.index(item[0][0])):
        table.add_row(model, framework, *(Text(*_MARKS[found[name]]) for name in accelerators))
    out.print(table)


def print_check(document: Mapping[str, Any]) -> None:
    """The verdict in words: defects first, then what the lookup leaves out."""
    out = console()
    tables = document["tables"]
    rows = sum(table["rows"] for table in tables)
    fast = document["faster_than_light"]
    steps, falls = sum(t["steps"] for t in tables), sum(t["falls"] for t in tables)
    lines: list[tuple[str, str | Text]] = [
        ("checked", f"{len(tables)} tables, {rows:,} points: schemas, keys, values, hashes"),
        (
            "defects",
            Text("none", "green") if document["ok"] else Text(f"{len(document['defects'])}", "bold red"),
        ),
        ("left out", f"{len(fast):,} points faster than the speed of light"),
        ("not monotone", f"{falls:,} of {steps:,} neighbouring points get faster although the shape grows"),
    ]
    facts(out, lines)
    for defect in document["defects"]:
        paragraph(out, Text(f"✗ {defect}", "red"))
    if document["coverage"]:
        _print_coverage(document["coverage"])
    if fast:
        heading(out, "Faster than light", f"the first {min(_SHOWN, len(fast))}; --json lists all")
        table = plain_table("table", "shape", "ms", "× light", right=("ms", "× light"))
        for row in sorted(fast, key=lambda row: -row["efficiency"])[:_SHOWN]:
            where = f"{row['accelerator']}/{row['framework']}/{row['op']}"
            table.add_row(where, row["shape"], f"{row['latency_ms']:.4g}", f"{row['efficiency']:.2f}")
        out.print(table)


def import_wheel(wheel: Path | None, to: Path | None) -> dict[str, Any]:
    """Rebuild the tables below ``to`` from ``wheel`` (None: fetched by pip into a temporary folder)."""
    destination = to or operator_db_root()
    if wheel is not None and not wheel.is_file():
        remedy = f"give a wheel of {PACKAGE}, or leave --wheel out"
        raise InputError(Problem("--wheel", str(wheel), "no such file", remedy))
    with waiting("importing the tables"), tempfile.TemporaryDirectory() as folder:
        report = import_tables(wheel or fetch_wheel(PACKAGE_VERSION, Path(folder)), destination)
    return {
        "package": report.package,
        "version": report.version,
        "wheel_sha256": report.wheel_sha256,
        "destination": str(destination),
        "tables": len(report.tables),
        "rows": report.rows,
        "bytes": report.bytes,
        "set_aside": dict(report.set_aside),
    }


def print_import(document: Mapping[str, Any]) -> None:
    """What an import has written."""
    out = console()
    facts(
        out,
        [
            ("read", f"{document['package']} {document['version']}"),
            (
                "written",
                f"{document['tables']} tables, {document['rows']:,} points, {document['bytes'] / _MB:.1f} MB",
            ),
            ("into", document["destination"]),
            (
                "left out",
                f"{len(document['set_aside'])} files of the wheel that add nothing or lack a column",
            ),
        ],
    )
