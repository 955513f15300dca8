"""The report in a real browser: from a file, without a network, on a desk and on a phone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from afd_dse.report.html import page as report
from tests.browser import accessible_names, browser, contrasts, dark_pixels, needs_browser
from tests.results.examples import answer, full

pytestmark = needs_browser


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report(full().document, full().candidates))
    return path


def opened(chrome: Any, path: Path, complaints: list[str], width: int = 1280, scheme: str = "light") -> Any:
    context = chrome.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page = context.new_page()
    page.set_default_timeout(40_000)
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else complaints.append(r.url),
    )
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    return page


def test_every_chart_is_drawn_and_nothing_is_fetched(chrome: Any, file: Path) -> None:
    complaints: list[str] = []
    page = opened(chrome, file, complaints)
    assert page.inner_text("h1").startswith(full().document["best"]["label"])
    charts = page.locator(".chart")
    assert charts.count() == 9
    for index in range(charts.count()):
        assert dark_pixels(page, f"#{charts.nth(index).get_attribute('id')}") > 1000
    assert complaints == []


def test_axes_are_switched_and_what_they_mean_is_told(chrome: Any, file: Path) -> None:
    complaints: list[str] = []
    page = opened(chrome, file, complaints)
    page.select_option("#axis-y", "usd_per_mtok")
    page.wait_for_function("document.querySelector('#chart-front .ytitle').textContent.startsWith('Cost')")
    assert "price of all GPUs" in page.inner_text("#front-definition")
    page.select_option("#axis-x", "ttft_percentile_ms")
    page.select_option("#axis-y", "ttft_percentile_ms")
    assert "Both axes are the same" in page.inner_text("#front-missing")
    assert complaints == []


def test_a_click_pins_a_point_and_the_list_pins_another_beside_it(chrome: Any, file: Path) -> None:
    complaints: list[str] = []
    page = opened(chrome, file, complaints)
    point = page.locator("#chart-front .scatterlayer .trace:nth-child(1) .point").first
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#pins table")
    option = page.locator("#pin-choice option").last
    page.select_option("#pin-choice", option.get_attribute("value"))
    page.wait_for_selector("#pins td.differs")
    row = int(option.get_attribute("value") or -1)
    cells = page.locator("#pins tr", has=page.locator("th", has_text="label")).locator("td").all_inner_texts()
    assert full().candidates["label"].iloc[row] in cells
    page.click("#pins button")
    assert page.locator("#pins table").count() == 0
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_and_controls_have_names(chrome: Any, file: Path, scheme: str) -> None:
    page = opened(chrome, file, [], scheme=scheme)
    assert {text: ratio for text, ratio in contrasts(page).items() if ratio < 4.5} == {}
    assert accessible_names(page) == []
    assert page.evaluate("document.documentElement.dataset.shown") == scheme


def test_on_a_phone_nothing_is_cut_off(chrome: Any, file: Path) -> None:
    page = opened(chrome, file, [], width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_an_infeasible_answer_is_a_page_without_charts_or_complaints(chrome: Any, tmp_path: Path) -> None:
    found = answer("IMPOSSIBLE")
    (tmp_path / "report.html").write_text(report(found.document, found.candidates))
    complaints: list[str] = []
    page = opened(chrome, tmp_path / "report.html", complaints)
    assert page.inner_text("h1") == "No deployment meets the limits"
    assert found.nearest_misses[-1]["reason"] in page.inner_text("header")
    assert complaints == []
