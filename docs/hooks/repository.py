"""Pages and files of the repository outside of docs/: those that pages link to become a part of the site.

In the repository every link is relative to its own file, so that it works on the repository's web page too. On the site
what lies outside of docs/ is below `repository/`; links are written anew for that. Pages that the navigation does not
name are listed at its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PREFIX = "repository/"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")  # [text](PATH#ANCHOR)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds every file outside of docs/ that the navigation or a page names, and those that these name in turn."""
    named = [ROOT / uri.removeprefix(PREFIX) for uri in pages_of(config.nav) if uri.startswith(PREFIX)]
    sources = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    to_read, found = [*sources, *named], set(named)
    while to_read:
        page = to_read.pop()
        for match in LINK.finditer(page.read_text(encoding="utf-8")):
            target = (page.parent / match[1]).resolve()
            outside = target.is_relative_to(ROOT) and not target.is_relative_to(DOCS)
            if outside and target.is_file() and target.suffix != ".ipynb":  # a notebook is a page of its own
                to_read += [target] if target.suffix == ".md" and target not in found else []
                found.add(target)
    for path in sorted(found):
        files.append(File.generated(config, PREFIX + path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    listed = set(pages_of(config.nav))
    rest = [file.src_uri for file in files.documentation_pages() if file.src_uri not in listed]
    own = [uri for uri in rest if not uri.startswith(PREFIX)]
    if own and config.nav is not None:
        config.nav.append({"More": own})
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links from docs/ to the outside, and from the outside to anywhere, lead to the place of their target here."""
    uri = page.file.src_uri
    source = (ROOT if uri.startswith((PREFIX, "notebooks/")) else DOCS) / uri.removeprefix(PREFIX)

    def rewritten(match: re.Match[str]) -> str:
        target = (source.parent / match[1]).resolve()
        if target.suffix == ".ipynb" and target.stem != source.stem:  # the page that the notebook is here
            place = f"notebooks/{target.stem}.md"
        elif target.is_relative_to(DOCS):
            place = target.relative_to(DOCS).as_posix()
        elif target.is_relative_to(ROOT):
            place = PREFIX + target.relative_to(ROOT).as_posix()
        else:
            return match[0]
        return relpath(place, dirname(uri)) + (match[2] or "") if files.get_file_from_path(place) else match[0]

    if uri == "mutants.md":  # its table would be found by every search for a word of the project
        page.meta["search"] = {"exclude": True}
    return LINK.sub(rewritten, markdown)


def pages_of(nav: Any) -> Iterator[str]:
    """The pages of a navigation, sections opened."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict | list):
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(entry)
