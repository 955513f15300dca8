"""A real browser for tests: Debian's chromium or any Chrome, without a window."""

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from afd_dse.report.printing import BROWSERS

PATH = next((found for name in BROWSERS if (found := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(
    PATH is None, reason="no Chromium or Chrome on this machine (Debian: apt-get install chromium)"
)


@contextmanager
def browser() -> Iterator[Any]:
    """A browser of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # NOTE: without --no-sandbox a browser refuses to run as root, as continuous integration does.
        running = playwright.chromium.launch(executable_path=PATH, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield running
        finally:
            running.close()


_CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, a] = parse(getComputedStyle(at).backgroundColor);
      if (a === undefined || a > 0.5) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = {};
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.closest("svg, script, style, :disabled") || !element.checkVisibility()) continue;
    const ink = light(parse(getComputedStyle(element).color)), page = light(behind(element));
    const ratio = (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05);
    found[element.tagName + " " + element.textContent.trim().slice(0, 40)] = ratio;
  }
  return found;
}"""
_NAMELESS = """() => [...document.querySelectorAll("button, input, textarea, select, a, [role=slider]")]
  .filter((element) => element.checkVisibility() && !element.closest(".modebar"))
  .filter((element) => {
    const labelled = (element.getAttribute("aria-labelledby") || "").split(" ")
      .map((id) => document.getElementById(id)?.textContent || "").join("");
    const label = [...(element.labels || [])].map((one) => one.textContent).join("");
    return !(labelled + label + (element.getAttribute("aria-label") || "") + element.textContent).trim();
  }).map((element) => element.outerHTML.slice(0, 160))"""


def contrasts(page: Any) -> dict[str, float]:
    """Contrast of every visible text with what lies behind it, as WCAG 2.2 defines it."""
    found: dict[str, float] = page.evaluate(_CONTRAST)
    return found


def accessible_names(page: Any) -> list[str]:
    """Visible controls without a name for those who do not see them."""
    found: list[str] = page.evaluate(_NAMELESS)
    return found


def dark_pixels(page: Any, selector: str) -> int:
    """Pixels of a screenshot of an element that differ clearly from its corner: an empty box has none."""
    image = base64.b64encode(page.locator(selector).screenshot()).decode()
    count: int = page.evaluate(
        """async (data) => {
          const image = new Image();
          image.src = "data:image/png;base64," + data;
          await image.decode();
          const canvas = document.createElement("canvas");
          canvas.width = image.width;
          canvas.height = image.height;
          const context = canvas.getContext("2d");
          context.drawImage(image, 0, 0);
          const pixels = context.getImageData(0, 0, image.width, image.height).data;
          let count = 0;
          for (let i = 0; i < pixels.length; i += 4) {
            let far = 0;
            for (let channel = 0; channel < 3; channel += 1) far += Math.abs(pixels[i + channel] - pixels[channel]);
            if (far > 150) count += 1;
          }
          return count;
        }""",
        image,
    )
    return count
