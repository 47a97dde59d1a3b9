"""The notebooks of notebooks/ as pages: their text, their code, and the outputs that are kept in them."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
IMAGES = {"image/png": "png", "image/gif": "gif"}
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted(FOLDER.glob("*.ipynb")):
        parts, images = [], {}
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            text = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                parts.append(text)
                continue
            parts.append(f"```python\n{text}\n```")
            for place, output in enumerate(cell["outputs"]):
                parts.append(shown(output, f"{path.stem}-{number}-{place}", images))
        note = f"[This page as a notebook]({path.name}): download it and open it in Jupyter.\n"
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content="\n\n".join([*parts, note])))
        files.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))
        for name, content in images.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def shown(output: dict[str, Any], name: str, images: dict[str, bytes]) -> str:
    """Markdown of one output; a picture is added to `images`."""
    data = output.get("data", {})
    for kind, suffix in IMAGES.items():
        if kind in data:
            images[f"{name}.{suffix}"] = base64.b64decode("".join(data[kind]))
            return f"![What the cell above shows]({name}.{suffix})"
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{ANSI.sub('', text).rstrip()}\n```" if text.strip() else ""
