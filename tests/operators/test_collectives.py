import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd_dse.errors import InputError
from afd_dse.operators.collectives import ELEMENT_BYTES, OPERATIONS, CollectiveTable, collective_light
from afd_dse.operators.database import OperatorDatabase
from afd_dse.operators.latency import Latency, Provenance
from afd_dse.operators.store import load_table
from afd_dse.spec.catalogue import load_accelerator

H200, GB200, GB300 = (load_accelerator(name) for name in ("h200_sxm", "gb200", "gb300"))
operations = st.sampled_from(sorted(OPERATIONS))


@pytest.fixture(scope="module")
def database() -> OperatorDatabase:
    return OperatorDatabase(H200, "trtllm")


def ask(database: OperatorDatabase, operation: str, size: object, gpus: object) -> Latency:
    found: Latency = getattr(database, operation)(message_bytes=size, gpus=gpus)
    return found


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_measured_points_come_back_exactly(database: OperatorDatabase, operation: str) -> None:
    op, name = ("custom_allreduce", "trtllm") if operation == "all_reduce" else ("nccl", "nccl")
    table = load_table("h200_sxm", name, op)
    assert table is not None
    if op == "nccl":
        table = table[(table["op_name"] == OPERATIONS[operation]) & (table["nccl_dtype"] == "half")]
    found = ask(database, operation, table["message_size"] * ELEMENT_BYTES, table["num_gpus"])
    np.testing.assert_allclose(found.seconds, table["latency_ms"] * 1e-3, rtol=1e-6)
    assert (found.provenance == Provenance.MEASURED).all()


def test_captured_kernels_count_and_eager_ones_do_not() -> None:
    table = load_table("h200_sxm", "vllm", "custom_allreduce")
    assert table is not None
    graph = table[table["kernel_source"] == "vLLM_custom_graph"]
    size = graph["message_size"] * ELEMENT_BYTES
    found = ask(OperatorDatabase(H200, "vllm"), "all_reduce", size, graph["num_gpus"])
    np.testing.assert_allclose(found.seconds, graph["latency_ms"] * 1e-3, rtol=1e-6)


def test_counts_between_measured_ones_are_interpolated(database: OperatorDatabase) -> None:
    found = ask(database, "all_reduce", 1e6, [2, 3, 4, 6, 8])
    expected = [Provenance.INTERPOLATED] * 5  # 1e6 bytes is no measured size
    assert found.provenance.tolist() == expected
    assert (np.diff(found.seconds) > 0).all()


def test_counts_beyond_the_tables_are_flagged(database: OperatorDatabase) -> None:
    covered = database.collective_covered(operation="all_reduce", gpus=[1, 2, 6, 8, 16])
    assert covered.tolist() == [True, True, True, True, False]
    assert ask(database, "all_reduce", 1e6, 16).provenance == Provenance.BORROWED


def test_a_tray_borrows_the_larger_counts_of_the_same_fabric() -> None:
    ours = ask(OperatorDatabase(GB200, "trtllm"), "all_reduce", 2**20, [8, 16])
    theirs = ask(OperatorDatabase(GB300, "trtllm"), "all_reduce", 2**20, [8, 16])
    assert (ours.provenance == Provenance.BORROWED).all()
    np.testing.assert_allclose(ours.seconds, theirs.seconds, rtol=0.05)


def test_one_gpu_and_empty_messages_cost_nothing(database: OperatorDatabase) -> None:
    found = ask(database, "all_gather", [1e6, 0.0], [1, 8])
    assert found.seconds.tolist() == [0.0, 0.0]


def test_bandwidth_is_held_for_longer_messages(database: OperatorDatabase) -> None:
    size = np.array([2.0**30, 2.0**33])
    found = ask(database, "all_reduce", size, 8).seconds
    light = collective_light(H200, "all_reduce", size, 8)
    assert found[0] / light[0] == pytest.approx(found[1] / light[1], rel=1e-6)


def kernels() -> CollectiveTable:
    """A one-shot kernel up to 1 MB of elements and a two-shot one from there, at efficiencies 0.5 and 0.25."""
    parts = []
    for kernel, sizes, efficiency in (
        ("oneshot", np.array([1e3, 1e6]), 0.5),
        ("twoshot", np.array([2e6, 1e9]), 0.25),
    ):
        light = collective_light(H200, "all_reduce", sizes * ELEMENT_BYTES, 8)
        rows = {"message_size": sizes, "kernel_source": kernel, "num_gpus": 8}
        parts.append(pd.DataFrame({**rows, "latency_ms": light / efficiency * 1e3}))
    return CollectiveTable(pd.concat(parts, ignore_index=True), H200, "all_reduce", own=True)


def test_a_kernel_answers_only_around_where_it_was_run() -> None:
    sizes = np.array([1.0, 1e4, 1e6, 1.1e6, 1.9e6, 2e6, 1e12]) * ELEMENT_BYTES
    value, _ = kernels().at(8, sizes)
    np.testing.assert_allclose(value, [0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25])


@settings(max_examples=60, deadline=None)
@given(
    operation=operations,
    rows=st.lists(st.tuples(st.floats(1, 1e10), st.integers(2, 128)), min_size=1, max_size=10),
)
def test_any_message_is_finite_and_rows_do_not_depend_on_each_other(
    operation: str, rows: list[tuple[float, int]]
) -> None:
    size, gpus = np.array(rows).T
    together = ask(SHARED, operation, size, gpus)
    assert np.isfinite(together.seconds).all()
    assert (together.seconds > 0).all()
    for i, (bytes_, count) in enumerate(rows):
        alone = ask(SHARED, operation, bytes_, count)
        assert float(alone.seconds) == pytest.approx(float(together.seconds[i]))
        assert alone.provenance == together.provenance[i]


SHARED = OperatorDatabase(GB200, "vllm")


@settings(max_examples=30, deadline=None)
@given(operation=operations, size=st.floats(1, 1e10), gpus=st.integers(2, 72), faster=st.floats(1.0, 8.0))
def test_more_link_bandwidth_is_never_slower(operation: str, size: float, gpus: int, faster: float) -> None:
    wide = GB200.model_copy(update={"scale_up_bytes_per_s": GB200.scale_up_bytes_per_s * faster})
    base = ask(SHARED, operation, size, gpus).seconds
    assert ask(OperatorDatabase(wide, "vllm", GB200), operation, size, gpus).seconds <= base * (1 + 1e-12)


def test_an_unknown_collective_is_refused(database: OperatorDatabase) -> None:
    with pytest.raises(InputError, match="all_gather"):
        database.collective_covered(operation="broadcast", gpus=2)
