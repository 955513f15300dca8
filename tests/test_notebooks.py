"""Every notebook runs from top to bottom."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
LONGEST_CELL_S = 600


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    NotebookClient(book, timeout=LONGEST_CELL_S, kernel_name="python3").execute(cwd=str(path.parent))
    assert any(cell.cell_type == "code" and cell.outputs for cell in book.cells)
