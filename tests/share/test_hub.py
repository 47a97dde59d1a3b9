"""Push and pull by the real client of huggingface-hub, against a stand-in that speaks the hub's protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import playvirtual as pv
from playvirtual.runs.checkpoint import write_new_folder
from playvirtual.share import hub as module
from tests.runs.untrained_export import write_export
from tests.share.stand_in_hub import READ_ONLY, TOKEN, Hub, running_hub
from tests.waiting import HANG

# The client reads its endpoint when it is imported: a process of its own runs the commands, one after the other.
COMMANDS = """
import contextlib, io, json, os, sys
from playvirtual.cli.main import main
for token, words in json.load(sys.stdin):
    os.environ.pop("HF_TOKEN", None)
    if token: os.environ["HF_TOKEN"] = token
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


def commands(hub_address: str, home: Path, *steps: tuple[str, list[str]]) -> list[tuple[int, str, str]]:
    """The exit code and the output of each command, given with the token of its user."""
    environment = {"HF_ENDPOINT": hub_address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*"}
    result = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps(steps),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert result.returncode == 0, result.stderr
    return [tuple(json.loads(line)) for line in result.stdout.splitlines()]


@pytest.fixture
def hub() -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub")
    with running_hub() as running:
        yield running


@pytest.mark.slow(10)
def test_an_agent_is_pushed_and_pulled(hub: Hub, tmp_path: Path) -> None:
    """Twice, with and without a card made before; then every way in which it can go wrong, each in one line."""
    agent = write_export(tmp_path / "agent", "toy/reach", eval_episodes=2)
    foreign = pv.export(agent, tmp_path / "foreign")
    (foreign / "weights.safetensors").write_bytes(b"\x80\x04pickle")
    carded = pv.export_with_card(agent, tmp_path / "carded", device="cpu")
    (carded / "secret.txt").write_text("not of an export")
    with (carded / "README.md").open("a") as card:
        card.write("A line of its author's.\n")
    hub.repos["me/empty"] = [{"README.md": b"# nothing"}]
    hub.repos["me/forged"] = [{name: (foreign / name).read_bytes() for name in module.PULLED}]
    hub.repos["me/large"] = [{**hub.repos["me/forged"][0], "config.json": b" " * (module.RECORD_BYTES + 1)}]
    out = [str(tmp_path / f"pulled-{number}") for number in range(7)]
    done = commands(
        hub.address,
        tmp_path / "home",
        (TOKEN, ["push", str(agent), "me/reach", "--episodes", "2"]),
        ("", ["pull", "me/reach", "--out", out[0]]),
        (TOKEN, ["push", str(carded), "me/reach"]),
        ("", ["pull", "me/reach", "--out", out[1], "--revision", "main"]),
        ("", ["push", str(agent), "me/reach"]),
        (READ_ONLY, ["push", str(carded), "you/reach"]),
        ("", ["pull", "me/nothing", "--out", out[2]]),
        ("", ["pull", "me/reach", "--out", out[3], "--revision", "v9"]),
        ("", ["pull", "me/empty", "--out", out[4]]),
        ("", ["pull", "me/forged", "--out", out[5]]),
        ("", ["pull", "me/large", "--out", out[6]]),
        ("", ["pull", "no name at all", "--out", out[6]]),
        ("", ["pull", "me/reach", "--out", out[0]]),
    )
    codes, texts = [code for code, _, _ in done], [out + err for _, out, err in done]
    assert codes == [0] * 4 + [2] * 9, texts
    assert texts[0] == f"pushed: {hub.address}/me/reach\n"
    assert texts[1] == f"export: {out[0]}\n"
    wanted = [
        "hub: not logged in; allowed: after `hf auth login`, or with a token",
        "hub: no right to write to 'you/reach' (403); allowed: after `hf auth login`",
        "hub: there is no repository 'me/nothing', or it is private; allowed: after `hf auth login`",
        "hub: 'me/reach' has no such revision; allowed: a branch, a tag or a commit",
        "hub: 'me/empty' has no agent; allowed: what `playvirtual push` uploaded",
        "weights.safetensors' is damaged (its checksum does not match)",
        f"hub: config.json of 'me/large' has {module.RECORD_BYTES + 1} bytes; allowed: {module.RECORD_BYTES} or less",
        "hub: 'no name at all' is not allowed; allowed: user/name, as on the hub",
        f"out: {out[0]!r} exists already; allowed: a new folder",
    ]
    for text, line in zip(texts[4:], wanted, strict=True):
        assert len(text.splitlines()) == 1
        assert line in text
    first, second = hub.repos["me/reach"]
    assert set(first) == {*module.PULLED, "README.md", next(name for name in first if name.startswith("replay."))}
    assert "secret.txt" not in second
    assert second["README.md"] == (carded / "README.md").read_bytes()
    fetched = {request.rpartition("/")[2] for request in hub.asked if "/resolve/" in request}
    assert fetched == set(module.PULLED)
    assert [Path(path).exists() for path in out] == [True, True, False, False, False, False, False]
    frame = np.random.default_rng(0).integers(256, size=(12, 12, 3), dtype=np.uint8)
    for path in out[:2]:
        assert {file.name for file in Path(path).iterdir()} == set(module.PULLED)
        np.testing.assert_array_equal(pv.load(path, "cpu").act(frame), pv.load(agent, "cpu").act(frame))


def test_a_hub_that_does_not_answer_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(pv.InputError, match="hub: 'me/a' cannot be reached: ") as error:
        pv.pull("me/a", tmp_path / "a")
    assert len(str(error.value).splitlines()) == 1


def test_without_the_client_both_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    calls: list[Any] = [lambda: pv.pull("me/a", tmp_path / "out"), lambda: pv.push(tmp_path, "me/a")]
    for call in calls:
        with pytest.raises(
            pv.InputError, match=r"huggingface-hub is not installed; in a clone: pip install -e '.\[hub\]'"
        ):
            call()


def test_what_was_pulled_needs_the_same_trust_as_any_other_folder(tmp_path: Path) -> None:
    """A pulled configuration may name a module: loading imports nothing, evaluating asks first."""
    agent = write_export(tmp_path / "agent", "toy/catch")
    text = (agent / "config.json").read_text().replace("toy/catch", "gym/pulled_module:Name-v0")
    foreign = tmp_path / "foreign"
    names = ("agent.json", "weights.safetensors")
    write_new_folder(foreign, [("config.json", text.encode()), *((n, (agent / n).read_bytes()) for n in names)])
    pulled = pv.export(foreign, tmp_path / "pulled")  # the last step of `pull`
    assert pv.load(pulled, "cpu").act(np.zeros((10, 10), np.uint8)) in range(3)
    for refused in (lambda: pv.evaluate(pulled), lambda: pv.export_with_card(pulled, tmp_path / "card")):
        with pytest.raises(pv.InputError, match="names 'gym/pulled_module:Name-v0'"):
            refused()
    assert "pulled_module" not in sys.modules
