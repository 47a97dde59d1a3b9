"""The documentation site builds strictly; what was built is looked at as a reader's browser would look at it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

import playvirtual as pv
from playvirtual.cli.flags import NAMED_ELSEWHERE
from playvirtual.config import registry
from playvirtual.config.build import every_option
from playvirtual.envs import task_names
from tests.study.chromium import needs_chromium, open_page
from tests.waiting import HANG

pytest.importorskip("mkdocs", reason="mkdocs is not installed")
ROOT = Path(__file__).parents[2]
WIDE, NARROW = 1400, 390  # pixels of a screen


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as by `make docs`: a link to nowhere, an excerpt of what is gone and the like end the build."""
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    return out


class Parsed(HTMLParser):
    """The anchors of a page, where its links lead, and what it loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        elif tag in ("script", "img", "iframe", "source", "video") and given.get("src"):
            self.loaded.append(str(given["src"]))
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.loaded.append(str(given["href"]))


def pages_of(site: Path) -> dict[Path, Parsed]:
    return {page: Parsed(page) for page in sorted(site.rglob("*.html"))}


def broken_links(site: Path, pages: dict[Path, Parsed]) -> list[str]:
    """As in "runs/index.html: ../gone/"."""
    broken = []
    for page, parsed in pages.items():
        for link in [*parsed.links, *parsed.loaded]:
            if re.match(r"[a-z]+:", link) or page.name == "404.html":  # its links begin at the server's root
                continue
            path, anchor = urldefrag(unquote(link))
            target = (page.parent / path).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            known = pages[target].anchors if target in pages else {""}
            if not target.is_file() or (anchor not in known and target.suffix == ".html"):
                broken.append(f"{page.relative_to(site)}: {link}")
    return broken


@pytest.mark.slow(seconds=15)
def test_the_site_has_no_broken_link_asks_no_other_host_and_leaves_nothing_out(site: Path) -> None:
    pages = pages_of(site)
    assert broken_links(site, pages) == []
    assert len(pages) > 25
    assert (site / "repository" / "results" / "atari" / "report" / "index.html").is_file()  # a link out of docs/
    foreign = [(page, place) for page, parsed in pages.items() for place in parsed.loaded if "//" in place]
    assert foreign == []
    assert not [css for css in site.rglob("*.css") if re.search(r"(url\(|@import)\W*(https?:)?//", css.read_text())]

    def text(page: str) -> str:
        return (site / page / "index.html").read_text(encoding="utf-8")

    assert [name for name in task_names() if f"<code>{name}</code>" not in text("reference/tasks")] == []
    assert [m.name for m in registry.methods() if f"<code>{m.name}</code>" not in text("reference/methods")] == []
    options = {f.name for f, _ in every_option()} - set(NAMED_ELSEWHERE)
    assert [name for name in options if f"<code>{name}</code>" not in text("reference/options")] == []
    documented = re.findall(r'<h3 id="playvirtual\.[\w.]*?(\w+)"', text("api"))
    assert set(pv.__all__) <= set(documented)
    assert text("equations").count('class="math"') > 20
    assert "def prediction_loss" in re.sub(r"<[^>]*>", "", text("equations"))


class Served(SimpleHTTPRequestHandler):
    """The files of the site, and at /frames all of its pages in frames."""

    frames = ""

    def do_GET(self) -> None:
        if self.path != "/frames":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.frames.encode())

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


FRAME = '<iframe src="{page}" width="{width}" height="800"></iframe>'
MEASURE = """
<link rel="icon" href="data:,">
<script>
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const root = frame.contentDocument.documentElement;
    return [frame.getAttribute("src"), frame.clientWidth, root.scrollWidth - frame.clientWidth];
  });
  document.title = JSON.stringify(found);
});
</script>
"""


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Served, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow(seconds=30)
@pytest.mark.long
@needs_chromium
def test_a_browser_shows_every_page_without_an_error_and_none_is_wider_than_the_screen(
    site: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = [f"/{page.parent.relative_to(site).as_posix()}/" for page in site.rglob("index.html")]
    own = sorted(page for page in pages if "/report/" not in page)
    frames = "".join(FRAME.format(page=page, width=width) for page in own for width in (WIDE, NARROW))
    monkeypatch.setattr(Served, "frames", MEASURE + frames)
    no_other_host = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    dom, console = open_page(f"{address}/frames", tmp_path / "profile", no_other_host)
    assert console == []
    found = json.loads(dom.partition("<title>")[2].partition("</title>")[0])
    assert len(found) == 2 * len(own)
    assert [entry for entry in found if entry[2] > 0] == []
