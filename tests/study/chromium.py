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


def open_page(page: Path, profile: Path) -> tuple[str, list[str]]:
    """(the page's elements after loading, what its console said)."""
    assert BROWSER is not None
    result = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", page.resolve().as_uri()],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert result.stdout, result.stderr
    return result.stdout, [line for line in result.stderr.splitlines() if "CONSOLE" in line]
