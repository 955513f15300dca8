import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from afd_dse import estimate
from afd_dse.cli.answer import print_answer
from afd_dse.cli.estimate import merge_kinds, print_estimate
from tests.results.examples import answer, job


def shown(name: str = "SMALL", *, width: int = 100, colour: bool = False) -> str:
    out = Console(width=width, record=True, force_terminal=colour, highlight=False, no_color=not colour)
    with out.capture() as captured:
        print_answer(answer(name).document, job="job.yaml", out=out)
    return captured.get()


def test_every_mode_stands_in_the_table_and_the_best_is_marked() -> None:
    text, document = shown(), answer().document
    table = text.split("Modes")[1].split("Recommended")[0]
    for mode in document["modes"]:
        assert mode["name"] in table
    marked = [line for line in table.splitlines() if line.startswith("►")]
    assert len(marked) == 1
    assert document["best"]["mode"] in marked[0]


def test_modes_that_no_release_runs_are_marked() -> None:
    text, modes = shown(), answer().document["best_per_mode"]
    unknown = [name for name, best in modes.items() if best["launchable"] is None]
    assert 0 < len(unknown) < len(modes)
    for name in modes:
        assert (f"{name}°" in text) == (name in unknown)
    assert "no release of trtllm runs it today" in text


def test_the_recommendation_says_what_it_is_what_binds_and_how_far_to_trust_it() -> None:
    text, best = shown(), answer().document["best"]
    flat = " ".join(text.split())
    assert f"Recommended: {best['label']}" in text
    assert best["description"].split(". ")[0] in flat
    assert re.search(rf"{best['binding']['constraint']} [^,]*\([^)]*binds\)", flat)
    assert "interpolated" in text
    assert "afd-dse estimate job.yaml" in text


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize("name", ["SMALL", "IMPOSSIBLE", "TOO_SMALL"])
def test_no_line_is_wider_than_the_screen_except_commands(width: int, name: str) -> None:
    for line in shown(name, width=width).splitlines():
        assert len(line) <= width or "afd-dse " in line


def test_without_colour_there_are_no_escape_codes() -> None:
    assert "\x1b" not in shown()
    assert "\x1b" in shown(colour=True)


def test_memory_bars_are_readable_without_colour() -> None:
    bars = re.findall(r"[█▓▒]+·* \d+ %", shown())
    assert len(bars) == len(answer().document["best"]["groups"])
    for bar, group in zip(bars, answer().document["best"]["groups"], strict=True):
        used = len(re.sub(r"[^█▓▒]", "", bar)) / 32
        assert used == pytest.approx(group["memory_gib"]["total"] / group["memory_gib"]["budget"], abs=0.02)


def test_an_infeasible_job_lists_what_would_have_worked() -> None:
    text = shown("IMPOSSIBLE")
    assert "Nothing is feasible" in text
    assert "Recommended" not in text
    for miss in answer("IMPOSSIBLE").nearest_misses:
        assert miss["reason"] in " ".join(text.split())
    assert "afd-dse optimize job.yaml --space wide" in text


def test_written_files_are_named(tmp_path: Path) -> None:
    out = Console(width=100)
    with out.capture() as captured:
        written = [tmp_path / "result.json", tmp_path / "report.html"]
        print_answer(answer().document, job="my job.yaml", written=written, out=out)
    flat = captured.get().replace("\n", "")
    assert str(tmp_path / "report.html") in flat
    assert "'my job.yaml'" in flat


def test_an_estimate_shows_every_operator_once() -> None:
    document = estimate(job(), json.loads(json.dumps(answer().best)))
    out = Console(width=100)
    with out.capture() as captured:
        print_estimate(document, slo=job().slo.model_dump(), out=out)
    text = captured.get()
    assert document["label"] in text
    for phase in ("Decode step", "Prefill step"):
        assert phase in text
    assert text.count("routed experts ") == 2
    assert all(len(line) <= 100 for line in text.splitlines())


def test_operators_of_several_kinds_of_layers_are_added_up() -> None:
    def row(ms: float, origin: str) -> dict[str, object]:
        return {
            "station": "FFN", "operator": "up", "layers": f"{ms}", "ms_per_layer": ms, "ms_per_step": ms,
            "share": ms / 10, "provenance": origin,
        }  # fmt: skip

    (merged,) = merge_kinds([row(1.0, "borrowed"), row(3.0, "measured"), row(2.0, "interpolated")])
    assert merged["ms_per_step"] == 6.0
    assert merged["share"] == pytest.approx(0.6)
    assert merged["provenance"] == "measured"
    assert merged["ms_per_layer"] == 3.0
