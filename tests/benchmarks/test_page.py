"""The page of measured figures: tables between its marks, later runs over earlier ones."""

from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Target
from benchmarks.page import BEGIN, END, PAGE, PICTURE, curves, renew, tables
from benchmarks.table import document

MACHINE = {
    "processor": "a processor",
    "cores": 2,
    "python": "3.11",
    "load": {"1 min": 0.1},
    "fixed_work_s": 0.5,
}


def run(*figures: Figure) -> dict[str, Any]:
    return document(MACHINE, figures)


def test_of_a_figure_measured_twice_the_later_one_counts() -> None:
    limit = Target("at most", 3.0)
    first = run(Figure("whole answer", "seconds", 5.0, "s", limit), Figure("evaluator", "memory", 0.5, "GiB"))
    second = run(Figure("whole answer", "seconds", 2.5, "s", limit, "PA | DA"))
    text = tables([first, second])
    assert "| seconds | 2.5 s | ≤ 3 s | yes | PA / DA |" in text
    assert "| memory | 0.5 GiB |  |  |  |" in text
    assert "5 s |" not in text.replace("0.5", "").replace("2.5 s", "")
    assert text.index("**Whole answer**") < text.index("**Evaluator**")


def test_only_what_stands_between_the_marks_is_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    renew([run(Figure("evaluator", "rate", 7.0, "1/s"))], page, tmp_path / "none.png")
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "| rate | 7 1/s |" in text
    assert not (tmp_path / "none.png").exists()


def test_the_last_curve_of_each_axis_is_drawn() -> None:
    old, new, other = (
        run(Figure("growth", "exponent", 1.0, "", facts={"curve": {"axis": axis, "points": points}}))
        for axis, points in (("GPUs", [1]), ("GPUs", [2]), ("pools", [3]))
    )
    assert [curve["points"] for curve in curves([old, new, other])] == [[2], [3]]


def test_the_page_has_its_marks_and_its_picture() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.index(BEGIN) < text.index(END)
    assert PICTURE.is_file()
    assert "gallery/growth.png" in text
