"""Judging the operator database: schemas, keys, values, physics, and the hashes of its provenance."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from afd_dse.errors import DatabaseError, InputError
from afd_dse.operators import store
from afd_dse.operators.table_schema import SCHEMAS, TableSchema
from afd_dse.operators.table_work import speed_of_light
from afd_dse.resources import operator_db_root
from afd_dse.spec.accelerator import Accelerator
from afd_dse.spec.catalogue import accelerator_names, load_accelerator

EFFICIENCY_LIMIT = 1.05
"""Above this share of the speed of light a measurement is not believed: the lookup leaves it out."""

_FALL = 0.95
_TYPES = {"text": pa.string(), "integer": pa.int64(), "measured": pa.float32()}


@dataclass(frozen=True, slots=True)
class TableCheck:
    """What was found in one table.

    ``defects`` make it unusable as it stands. ``faster_than_light`` counts rows that the lookup leaves out (None
    where no bound applies); ``falls`` of ``steps`` neighbouring points lose more than 5 % of their latency although
    the shape grows, which is information on the measurement, not a defect.
    """

    accelerator: str
    framework: str
    op: str
    rows: int
    bytes: int
    defects: tuple[str, ...]
    faster_than_light: int | None = None
    steps: int = 0
    falls: int = 0


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Everything found: table by table, in the store as a whole, and the rows faster than light."""

    tables: tuple[TableCheck, ...]
    store_defects: tuple[str, ...]
    faster_than_light: pd.DataFrame

    @property
    def defects(self) -> tuple[str, ...]:
        """Every defect, one line each."""
        found = (f"{t.accelerator}/{t.framework}/{t.op}: {what}" for t in self.tables for what in t.defects)
        return (*self.store_defects, *found)

    @property
    def ok(self) -> bool:
        """Whether there is no defect."""
        return not self.defects


def check_store(
    root: Path | None = None, accelerators: Mapping[str, Accelerator] | None = None
) -> CheckReport:
    """Check every table below ``root`` (the package's operator database if None).

    ``accelerators`` gives the rates that measurements are held against, by the name of their tables' folder (those
    of the catalogue if None).
    """
    root = root or operator_db_root()
    if accelerators is None:
        accelerators = {name: load_accelerator(name) for name in accelerator_names()}
    found = [_check_table(path, accelerators) for path in sorted((root / "tables").glob("*/*/*.parquet"))]
    listed = [rows for _, rows in found if rows is not None and len(rows)]
    return CheckReport(
        tables=tuple(check for check, _ in found),
        store_defects=tuple(_store_defects(root)),
        faster_than_light=pd.concat(listed, ignore_index=True)
        if listed
        else pd.DataFrame(columns=_LIGHT_COLUMNS),
    )


_LIGHT_COLUMNS = ["accelerator", "framework", "op", "shape", "latency_ms", "efficiency"]


def _check_table(
    path: Path, accelerators: Mapping[str, Accelerator]
) -> tuple[TableCheck, pd.DataFrame | None]:
    accelerator, framework, op = path.parent.parent.name, path.parent.name, path.stem
    size = path.stat().st_size
    schema = SCHEMAS.get(op)
    if schema is None:
        return TableCheck(accelerator, framework, op, 0, size, ("no schema declares this operator",)), None
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        return TableCheck(accelerator, framework, op, 0, size, (f"unreadable ({error})",)), None
    defects = list(_schema_defects(table, schema))
    if framework not in schema.frameworks:
        defects.append(f"{op} does not belong under {framework}")
    if defects:
        return TableCheck(accelerator, framework, op, len(table), size, tuple(defects)), None
    frame = table.to_pandas()
    valid = _valid(frame, schema)
    defects += list(_row_defects(frame, schema, valid))
    frame = frame[valid]
    light = None
    if accelerator not in accelerators:
        defects.append("the catalogue knows no such accelerator")
    else:
        try:
            light = _faster_than_light(frame, schema, accelerators[accelerator])
        except InputError as error:
            defects.append(str(error))
    steps, falls = _falls(frame, schema)
    if light is not None:
        light = light.assign(accelerator=accelerator, framework=framework, op=op)[_LIGHT_COLUMNS]
    count = None if light is None else len(light)
    check = TableCheck(accelerator, framework, op, len(table), size, tuple(defects), count, steps, falls)
    return check, light


def _schema_defects(table: pa.Table, schema: TableSchema) -> Iterator[str]:
    expected = dict.fromkeys(schema.text, _TYPES["text"])
    expected |= dict.fromkeys(schema.integers, _TYPES["integer"])
    expected |= dict.fromkeys(schema.measured, _TYPES["measured"])
    names = set(table.column_names)
    if missing := sorted(set(expected) - names):
        yield f"lacks {', '.join(missing)}"
    if surplus := sorted(names - set(expected)):
        yield f"has unknown columns {', '.join(surplus)}"
    for name in sorted(names & set(expected)):
        if table.schema.field(name).type != expected[name]:
            yield f"{name} is {table.schema.field(name).type}, not {expected[name]}"
    if not len(table):
        yield "is empty"


def _valid(frame: pd.DataFrame, schema: TableSchema) -> npt.NDArray[np.bool_]:
    finite = np.isfinite(frame[list(schema.measured)].to_numpy(dtype=np.float64)).all(axis=1)
    positive = (frame[list(schema.positive)].to_numpy(dtype=np.float64) > 0.0).all(axis=1)
    known = frame[list(schema.point)].notna().to_numpy().all(axis=1)
    result: npt.NDArray[np.bool_] = finite & positive & known
    return result


def _row_defects(frame: pd.DataFrame, schema: TableSchema, valid: npt.NDArray[np.bool_]) -> Iterator[str]:
    if invalid := int((~valid).sum()):
        first = frame[~valid].iloc[0].to_dict()
        yield f"{invalid} rows with a missing, non-finite or non-positive value, the first {first}"
    repeated = frame.duplicated(list(schema.point))
    if repeated.any():
        first = frame.loc[repeated, list(schema.point)].iloc[0].to_dict()
        yield f"{int(repeated.sum())} rows repeat the key of another, the first {first}"


def _faster_than_light(
    frame: pd.DataFrame, schema: TableSchema, accelerator: Accelerator
) -> pd.DataFrame | None:
    bound = speed_of_light(schema.op, frame, accelerator)
    if bound is None:
        return None
    efficiency = bound / (frame["latency_ms"].to_numpy(dtype=np.float64) * 1e-3)
    fast = efficiency > EFFICIENCY_LIMIT
    rows = frame[fast]
    shape = [
        ", ".join(f"{name}={value}" for name, value in zip(schema.point, row, strict=True))
        for row in rows[list(schema.point)].itertuples(index=False)
    ]
    return pd.DataFrame({"shape": shape, "latency_ms": rows["latency_ms"], "efficiency": efficiency[fast]})


def _falls(frame: pd.DataFrame, schema: TableSchema) -> tuple[int, int]:
    """Neighbouring points along the axes: how many pairs, and how many whose latency clearly falls."""
    steps = falls = 0
    free = [axis for axis in schema.axes if axis not in schema.dependent]
    latency = frame[list(schema.positive)].to_numpy(dtype=np.float64)
    for axis in free:
        others = [*schema.series, "kernel_source", *(other for other in free if other != axis)]
        curve = frame.groupby(others, sort=False).ngroup().to_numpy()
        order = np.lexsort((frame[axis].to_numpy(), curve))
        same = curve[order][1:] == curve[order][:-1]
        falling = (latency[order][1:] < _FALL * latency[order][:-1]).any(axis=1)
        steps += int(same.sum())
        falls += int((same & falling).sum())
    return steps, falls


def _store_defects(root: Path) -> Iterator[str]:
    """Files against the provenance: changed, missing, unlisted."""
    try:
        tables = store.provenance(root).get("tables")
    except DatabaseError as error:
        yield str(error)
        return
    listed = tables if isinstance(tables, dict) else {}
    if not listed:
        yield f"{store.PROVENANCE_FILE} lists no tables"
    present = {
        path.relative_to(root).as_posix(): path for path in sorted((root / "tables").glob("*/*/*.parquet"))
    }
    for name, entry in listed.items():
        if name not in present:
            yield f"{name}: listed in {store.PROVENANCE_FILE}, but not there"
        elif hashlib.sha256(present[name].read_bytes()).hexdigest() != entry.get("sha256"):
            yield f"{name}: differs from the hash in {store.PROVENANCE_FILE}"
    for name in present:
        if name not in listed:
            yield f"{name}: not listed in {store.PROVENANCE_FILE}"
