"""A page printed to PDF by an installed browser."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from afd_dse.errors import AfdDseError

# Browsers that print a page without a window; the first one found is used, AFD_DSE_BROWSER before all.
BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
)
_PRINT_SECONDS = 120


class BrowserError(AfdDseError):
    """No browser, or one that does not print."""


def printed(page: bytes) -> bytes:
    """An HTML page as the PDF that a browser prints. Raises :class:`BrowserError` where there is none."""
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="afd-dse-") as name:
        folder = Path(name)
        source, target = folder / "report.html", folder / "report.pdf"
        source.write_bytes(page)
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--no-sandbox",  # our own page, no network; without this a browser refuses to run as root
            f"--user-data-dir={folder / 'profile'}",
            "--no-pdf-header-footer",
            "--virtual-time-budget=20000",
            f"--print-to-pdf={target}",
            source.as_uri(),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_PRINT_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BrowserError(f"{browser} did not print the report ({error}); use --format html") from error
        if not target.is_file():
            last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise BrowserError(f"{browser} did not print the report ({last[0]}); use --format html")
        return target.read_bytes()


def find_browser() -> str:
    """The browser that prints. Raises :class:`BrowserError` where there is none."""
    asked = os.environ.get("AFD_DSE_BROWSER")
    for name in (asked,) if asked else BROWSERS:
        if name and (found := shutil.which(name)):
            return found
    missing = f"{asked} (AFD_DSE_BROWSER) does not run" if asked else "no Chromium or Chrome is installed"
    raise BrowserError(
        f"--format pdf: {missing}; install one (Debian: apt-get install chromium), name one in AFD_DSE_BROWSER, or use "
        "--format html and print from your browser"
    )
