"""A page as a real browser sees it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.waiting import HANG

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
)
needs_chromium = pytest.mark.skipif(BROWSER is None, reason="no Chromium here; on Debian: apt-get install chromium")


def open_page(page: Path | str, profile: Path, *flags: str) -> tuple[str, list[str]]:
    """(the page's elements after loading, what its console said); the page is a file or an address."""
    assert BROWSER is not None
    address = page if isinstance(page, str) else page.resolve().as_uri()
    result = subprocess.run(
        [BROWSER, *FLAGS, *flags, f"--user-data-dir={profile}", "--dump-dom", address],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert result.stdout, result.stderr
    return result.stdout, [line for line in result.stderr.splitlines() if "CONSOLE" in line]
