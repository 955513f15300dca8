"""Every notebook runs from top to bottom."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
LONGEST_CELL_S = 600
# Run before the first cell: nothing is left of the notebook before, and a search with a percentile simulates two
# deployments where it would twenty, which other tests prove.
BEFORE = "%reset -f\nfrom afd_dse.results import confirm as _\n_.CONFIRMED = 2\ndel _"


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """One for all notebooks: it reads the package and the tables once."""
    manager = AsyncKernelManager(kernel_name="python3")
    yield manager
    run_sync(manager.shutdown_kernel)(now=True)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, kernel: Any) -> None:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    book.cells.insert(0, nbformat.v4.new_code_cell(BEFORE))
    NotebookClient(book, km=kernel, timeout=LONGEST_CELL_S).execute(cwd=str(path.parent))
    assert any(cell.cell_type == "code" and cell.outputs for cell in book.cells[1:])
