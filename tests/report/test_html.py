import json
from html.parser import HTMLParser
from typing import Any

import pytest

from afd_dse.report.cards import axis_pairs, titles
from afd_dse.report.html import CHARTS_ID, DATA_ID, page
from tests.results.examples import answer, full

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Collects headings, the embedded data, what would be fetched, and tags left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.data = ""
        self.fetched: list[str] = []
        self.libraries = 0
        self.charts = ""
        self.boxes: list[str] = []
        self.text = ""
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.fetched += [str(given[name]) for name in ("src", "href") if name in given]
        if given.get("class") == "chart":
            self.boxes.append(str(given["id"]))
            assert given["aria-label"]
        if tag not in VOID:
            self._open.append((tag, given))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        tag, attrs = self._open[-1] if self._open else ("", {})
        if tag == "h2":
            self.headings.append(data)
        if tag == "script":
            self.libraries += "plotly.js v" in data[:200]
            if attrs.get("id") == DATA_ID:
                self.data += data
            if attrs.get("id") == CHARTS_ID:
                self.charts += data
        elif tag != "style":
            self.text += data


def read(result: Any) -> Page:
    return Page(page(result.document, result.candidates))


def test_the_data_in_the_page_are_those_of_the_result() -> None:
    assert json.loads(read(full()).data) == full().document


def test_the_points_of_the_charts_are_candidates_of_the_result() -> None:
    held = json.loads(read(full()).charts)
    columns, candidates = held["points"]["columns"], full().candidates
    assert len(held["points"]["rows"]) >= len(full().pareto)
    for row, values in held["points"]["rows"].items():
        for name in ("label", "mode", "gpus", "decode_ep", "tokens_per_s_per_gpu", "ttft_ms"):
            expected = candidates[name].iloc[int(row)]
            found = values[columns.index(name)]
            assert found == expected or found == pytest.approx(expected, rel=1e-7)


def test_the_front_can_be_shown_on_every_pair_of_axes() -> None:
    held = json.loads(read(full()).charts)
    assert set(held["charts"]["front"]) == {f"{x}|{y}" for x, y in axis_pairs()}
    assert {name for pair in axis_pairs() for name in pair} <= set(held["metrics"])


def test_the_page_needs_no_network_and_holds_the_library_once() -> None:
    found = read(full())
    assert found.fetched == []
    assert found.libraries == 1
    charts = json.loads(found.charts)["charts"]
    assert found.boxes == [f"chart-{key}" for key in charts]
    assert len(charts) == 9


def test_every_card_is_there() -> None:
    assert len(read(full()).headings) == len(list(titles()))


def test_the_answer_comes_before_all_cards() -> None:
    document = full().document
    found = read(full())
    best = document["best"]
    assert found.text.index(best["label"]) < found.text.index(found.headings[0])
    assert best["description"] in found.text
    for mode in document["modes"]:
        assert (mode["reason"] or "the answer; limited by") in found.text
    for question in ("Why this one", "What binds", "How sure", "What would change it", "Can it be launched"):
        assert question in found.text


@pytest.mark.parametrize("name", ["IMPOSSIBLE", "TOO_SMALL"])
def test_a_card_that_cannot_be_shown_says_why(name: str) -> None:
    document = answer(name).document
    found = read(answer(name))
    assert "No deployment meets the limits" in found.text
    assert "Nothing to show: no deployment meets the limits, so there is no front." in found.text
    assert found.boxes == []
    for miss in document["nearest_misses"]:
        assert miss["reason"] in found.text


def test_text_of_the_job_cannot_become_markup() -> None:
    evil = "</script><script>alert(1)</script><b>"
    document = json.loads(json.dumps(full().document))
    document["model"]["name"] = evil
    document["warnings"] = [evil]
    document["job"]["notes"] = [evil]
    document["modes"][1]["reason"] = evil
    document["best"]["label"] = evil
    candidates = full().candidates.assign(label=evil)
    found = Page(page(document, candidates))
    assert found.text.count(evil) >= 4
    assert json.loads(found.data) == document


def test_intervals_and_the_chance_to_meet_the_slo_are_told_where_the_result_has_them() -> None:
    document = json.loads(json.dumps(full().document))
    document["best"] |= {"intervals": None, "slo_probability": None}
    assert "has no interval" in Page(page(document)).text
    document["best"] |= {"intervals": {"tpot_ms": [17.0, 21.5]}, "slo_probability": 0.83}
    text = Page(page(document)).text
    assert "TPOT between 17.0 and 21.5 ms" in text
    assert "with a probability of 83 %" in text
    assert "has no interval" not in text
