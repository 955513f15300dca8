"""Today's answers to the published rows, evaluated once for all tests."""

from functools import lru_cache
from typing import Any

from afd_dse.literature import run
from afd_dse.literature.rows import read_rows
from benchmarks.literature_table import ROWS

# Rows that the model answers otherwise than their papers; docs/literature.md says why.
DIFFERING = {
    "S6", "F3", "E2", "A2", "C1-chat", "C1-coding", "C1-agentic", "C2", "C3", "C4",
}  # fmt: skip
# Rows that need a search: half a minute in all. The rest takes about ten seconds.
SEARCHED = {"M7", "M8", "F3", "E2", "C1-chat", "C4"}
# Many searches each, or like one that is tested: the script that writes the page runs them.
LEFT_TO_THE_SCRIPT = {"M6", "C1-coding", "C1-agentic", "C2", "C3"}


@lru_cache(maxsize=2)
def answers(searched: bool, /) -> dict[str, dict[str, Any]]:
    """Results of the rows that need a search, or of those that don't, by id."""
    rows = [row for row in read_rows(ROWS) if row.id not in LEFT_TO_THE_SCRIPT]
    return {row.id: run._result(row) for row in rows if (row.id in SEARCHED) == searched}
