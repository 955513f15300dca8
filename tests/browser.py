"""A real browser for tests: Debian's chromium or any Chrome, without a window."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from afd_dse.report.formats import BROWSERS

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
