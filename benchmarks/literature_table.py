"""Published results against ours as tables; writes them between the marks of docs/literature.md.

Run it after a change of the cost model or of the tables: ``python -m benchmarks.literature_table`` (two minutes).
"""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from afd_dse.literature.run import literature

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "tests" / "data" / "published_results.csv"
PAGE = ROOT / "docs" / "literature.md"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def published() -> dict[str, dict[str, str]]:
    """The rows of the file by id."""
    with ROWS.open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def line(row: Mapping[str, str], result: Mapping[str, Any]) -> str:
    """One row of the table."""
    cells = (
        row["id"],
        f"`{row['evaluator']}`",
        row["quantity"],
        row["expected"],
        shown(result["ours"]),
        "yes" if result["ok"] else "**no**",
    )
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def shown(value: Any) -> str:
    """Our value, numbers to four digits."""
    if isinstance(value, list):
        return "; ".join(shown(item) for item in value)
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.4g}"


def tables(results: Iterable[Mapping[str, Any]]) -> str:
    """A heading and a table for each system, in the order of the rows."""
    rows = published()
    by_system: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        by_system.setdefault(rows[result["id"]]["system"], []).append(result)
    blocks = []
    for system, found in by_system.items():
        sources = ", ".join(dict.fromkeys(rows[result["id"]]["source"] for result in found))
        passed = sum(result["ok"] for result in found)
        lines = [line(rows[result["id"]], result) for result in found]
        head = (
            "| row | evaluator | quantity | published | ours | within tolerance |\n|---|---|---|---|---|---|"
        )
        blocks.append(f"### {system}\n\n{sources}; {passed} of {len(found)}.\n\n{head}\n" + "\n".join(lines))
    return "\n\n".join(blocks)


def main() -> None:
    """Evaluate every row and renew the page."""
    document = literature(ROWS)
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    text = f"{document['passed']} of {document['rows']} rows are within tolerance.\n\n{tables(document['results'])}"
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
    print(f"{document['passed']} of {document['rows']}")


if __name__ == "__main__":
    main()
