"""Pictures of the real output for docs/gallery.md: `python benchmarks/gallery.py RESULT [RESULT…]`, needs a Chromium.

The first result's report is shown, and all of them in the dashboard.
"""

import argparse
import threading
from pathlib import Path
from typing import Any

import pandas as pd

from afd_dse.dashboard.app import load_session, server
from afd_dse.report.formats import html
from afd_dse.results.result import read_result
from tests.browser import browser

TO = Path(__file__).resolve().parents[1] / "docs" / "gallery"
_CARDS = ("front", "modes", "ratio", "time", "memory", "roofline", "sensitivity")


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    results = parser.parse_args().results
    TO.mkdir(exist_ok=True)
    page = TO / "report.html"
    first = read_result(results[0])
    page.write_bytes(html(first))
    running = server(load_session(results), 0)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        with browser() as chrome:
            _report(chrome, page)
            _dashboard(chrome, f"http://127.0.0.1:{running.port}/", _two_best(first.candidates))
    finally:
        page.unlink()
        running.shutdown()


def _report(chrome: Any, page: Path) -> None:
    for name, width, scheme in (("light", 1120, "light"), ("dark", 1120, "dark"), ("phone", 390, "light")):
        context = chrome.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
        tab = context.new_page()
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready=yes]")
        tab.wait_for_timeout(500)
        if name == "light":
            height = tab.locator("#front-definition").bounding_box()["y"]
            _shoot(tab, "report", {"x": 0, "y": 0, "width": width, "height": height})
            for card in _CARDS[1:]:
                tab.locator(f"#card-{card}").screenshot(path=TO / f"report-{card}.png")
        else:
            _shoot(tab, f"report-{name}", None)


def _two_best(candidates: pd.DataFrame) -> list[int]:
    """Rows of the best candidate of the two best modes."""
    ranked = candidates[candidates["rank"] > 0].sort_values("rank")
    return [int(row) for row in ranked.drop_duplicates("mode").index[:2]]


def _dashboard(chrome: Any, address: str, two: list[int]) -> None:
    pins = ",".join(f"r1:{row}" for row in two)
    views = (
        ("dashboard", "?tpot_ms=26", "light", "#chart .scatterlayer"),
        ("dashboard-compared", f"?y=usd_per_mtok&front=1&pin={pins}", "dark", "#details td.differs"),
    )
    for name, link, scheme, ready in views:
        context = chrome.new_context(viewport={"width": 1280, "height": 860}, color_scheme=scheme)
        tab = context.new_page()
        tab.goto(address + link)
        tab.wait_for_selector(ready)
        tab.wait_for_timeout(1500)
        if "pin" in link:
            tab.locator("#details").scroll_into_view_if_needed()
            tab.locator("#details").screenshot(path=TO / f"{name}.png")
        else:
            _shoot(tab, name, None)
        if name == "dashboard":
            tab.click("#to-new")
            tab.fill("input[name='slo.tpot_ms']", "-30")
            tab.wait_for_function("document.getElementById('run').disabled")
            tab.wait_for_timeout(500)
            _shoot(tab, "dashboard-form", None)


def _shoot(tab: Any, name: str, clip: dict[str, float] | None) -> None:
    tab.screenshot(path=TO / f"{name}.png", **({"clip": clip, "full_page": True} if clip else {}))


if __name__ == "__main__":
    main()
