"""The rules of docs/architecture.md that a machine can hold the code to."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "afd_dse"
FLOW = (
    "spec",
    "architecture",
    "operators",
    "network",
    "cost",
    "search",
    "calibration",
    "simulation",
    "planning",
    "results",
    "launch",
    "sweeps",
    "report",
    "literature",
    "dashboard",
    "cli",
)
# The specification may ask whether a model exists, late and only when told to.
ALLOWED = {("spec/job.py", "architecture"), ("spec/load.py", "architecture")}
NAMES_OF_MODES = {
    "colocated",
    "pd",
    "afd",
    "pd_afd",
    "shared_experts",
    "expertplex",
    "megascale",
    "afore",
    "step3",
}


def modules(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (PACKAGE / room).rglob("*.py"))


def imported_rooms(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("afd_dse."):
            yield node.module.split(".")[1]


@pytest.mark.parametrize("path", modules(*FLOW), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_against_the_flow(path: Path) -> None:
    name = str(path.relative_to(PACKAGE))
    room = FLOW.index(path.relative_to(PACKAGE).parts[0])
    later = {other for other in imported_rooms(path) if other in FLOW and FLOW.index(other) > room}
    assert {other for other in later if (name, other) not in ALLOWED} == set()


@pytest.mark.parametrize(
    "path", modules("cost", "network", "search"), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_no_mode_is_known_by_name_where_deployments_are_computed(path: Path) -> None:
    constants = {
        node.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert constants & NAMES_OF_MODES == set()


def test_no_module_grows_beyond_what_one_can_read() -> None:
    lengths = {
        p: len(p.read_text(encoding="utf-8").splitlines())
        for p in PACKAGE.rglob("*.py")
        if "_data" not in p.parts
    }
    assert {str(p): n for p, n in lengths.items() if n > 500} == {}
