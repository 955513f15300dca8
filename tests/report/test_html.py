import json
from html.parser import HTMLParser
from typing import Any

import pytest

from afd_dse.report.html import DATA_ID, page
from tests.results.examples import answer

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Collects headings, the embedded data, what would be fetched, and tags left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.data = ""
        self.fetched: list[str] = []
        self.libraries = 0
        self.plots = 0
        self.text = ""
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.fetched += [str(given[name]) for name in ("src", "href") if name in given]
        self.plots += given.get("class") == "plotly-graph-div"
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
        elif tag != "style":
            self.text += data


def read(document: Any) -> Page:
    return Page(page(document))


def test_the_data_in_the_page_are_those_of_the_result() -> None:
    document = answer().document
    assert json.loads(read(document).data) == document


def test_the_page_needs_no_network_and_holds_the_library_once() -> None:
    found = read(answer().document)
    assert found.fetched == []
    assert found.libraries == 1
    assert found.plots == 3


def test_the_answer_comes_before_all_cards() -> None:
    document = answer().document
    found = read(document)
    best = document["best"]
    assert found.text.index(best["label"]) < found.text.index(found.headings[0])
    assert best["description"] in found.text
    for mode in document["modes"]:
        assert (mode["reason"] or "the best") in found.text


@pytest.mark.parametrize("name", ["IMPOSSIBLE", "TOO_SMALL"])
def test_a_card_that_cannot_be_shown_says_why(name: str) -> None:
    document = answer(name).document
    found = read(document)
    assert "No deployment meets the limits" in found.text
    assert "Nothing to show: no deployment meets the limits, so there is no front." in found.text
    assert found.plots == 0
    for miss in document["nearest_misses"]:
        assert miss["reason"] in found.text


def test_text_of_the_job_cannot_become_markup() -> None:
    evil = "</script><script>alert(1)</script><b>"
    document = json.loads(json.dumps(answer().document))
    document["model"]["name"] = evil
    document["warnings"] = [evil]
    document["job"]["notes"] = [evil]
    document["modes"][1]["reason"] = evil
    found = read(document)
    assert found.text.count(evil) >= 3
    assert json.loads(found.data) == document
