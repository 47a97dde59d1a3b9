"""One process compiles at a time, nobody waits for code that is compiled, and nothing can make a run wait for ever."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

import playvirtual
from playvirtual.config.build import build
from playvirtual.training.compiled import compiling as module
from playvirtual.training.compiled.compiling import compile_once, compiling, key_of
from playvirtual.training.trainer import Trainer
from tests.waiting import HANG

FORK = multiprocessing.get_context("fork")


def _compile(folder: Path, pipe: Connection) -> None:
    """Says when it compiles, and ends when it is told to."""
    with compile_once("key", folder):
        pipe.send("compiling")
        pipe.recv()
    pipe.send("compiled")


def _start(folder: Path) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_compile, args=(folder, theirs), daemon=True)
    process.start()
    return process, ours


def test_a_second_process_waits_for_the_first(tmp_path: Path) -> None:
    first, to_first = _start(tmp_path)
    assert to_first.poll(HANG)
    assert to_first.recv() == "compiling"
    second, to_second = _start(tmp_path)
    assert not to_second.poll(0.6)  # three polls of the lock
    to_first.send("end")
    assert to_first.recv() == "compiled"
    assert to_second.poll(HANG)
    assert to_second.recv() == "compiling"
    to_second.send("end")
    for process in (first, second):
        process.join(HANG)
        assert process.exitcode == 0


@pytest.mark.parametrize("compiled_before", [False, True])
@pytest.mark.parametrize("on", [True, False])
def test_the_garbage_collector_is_off_while_it_compiles_and_as_it_was_after_that(
    tmp_path: Path, on: bool, compiled_before: bool
) -> None:
    if compiled_before:
        (tmp_path / "key").touch()
    try:
        if not on:
            gc.disable()
        with compile_once("key", tmp_path):
            assert not gc.isenabled()
        assert gc.isenabled() == on
        with suppress(KeyError), compile_once("another key", tmp_path):
            raise KeyError
        assert gc.isenabled() == on
    finally:
        gc.enable()


def test_a_killed_process_makes_room(tmp_path: Path) -> None:
    first, to_first = _start(tmp_path)
    assert to_first.recv() == "compiling"
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    first.join(HANG)
    second, to_second = _start(tmp_path)
    assert to_second.poll(HANG)
    assert to_second.recv() == "compiling"
    second.kill()
    second.join(HANG)


def test_nobody_waits_for_compiled_code(tmp_path: Path) -> None:
    with compile_once("key", tmp_path):
        pass
    with compile_once("key", tmp_path):  # holds no lock
        process, pipe = _start(tmp_path)
        assert pipe.poll(HANG)
        assert pipe.recv() == "compiling"
        process.kill()
        process.join(HANG)


def test_work_that_fails_is_not_marked_as_compiled(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), compile_once("key", tmp_path):
        raise ZeroDivisionError
    assert not (tmp_path / "key").exists()
    with compile_once("key", tmp_path):
        assert not (tmp_path / "key").exists()
    assert (tmp_path / "key").exists()


def test_a_process_that_compiles_for_too_long_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, pipe = _start(tmp_path)
    assert pipe.recv() == "compiling"
    monkeypatch.setattr(module, "LONGEST_WAIT", 0.3)
    began = time.monotonic()
    with compile_once("key", tmp_path):
        assert time.monotonic() - began >= 0.3
    process.kill()
    process.join(HANG)


def test_a_cache_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    done = []
    with compile_once("key", tmp_path / "cache"):
        done.append("compiled")
    assert done == ["compiled"]


def test_keys_are_equal_for_other_seeds_and_not_for_other_shapes() -> None:
    settings = {"steps": 200, "learning_starts": 100, "device": "cpu", "batch_size": 4}
    keys = {
        name: _key(**{**settings, **changes})
        for name, changes in {"one": {}, "seed": {"seed": 2}, "batch": {"batch_size": 5}, "K": {"K": 2}}.items()
    }
    assert keys["one"] == keys["seed"]
    assert len({keys["one"], keys["batch"], keys["K"]}) == 3
    assert key_of("a", "bc") != key_of("ab", "c")


@pytest.mark.slow
def test_sources_that_differ_are_compiled_anew(tmp_path: Path) -> None:
    """What is marked as compiled in a cache is of the version that compiled it."""
    shutil.copytree(Path(playvirtual.__file__).parent, tmp_path / "playvirtual")
    changed = tmp_path / "playvirtual" / "agents" / "losses.py"
    found = []
    for more in ("", "", "# another version\n"):
        changed.write_text(changed.read_text(encoding="utf-8") + more, encoding="utf-8")
        code = "from playvirtual.training.compiled.compiling import sources; print(sources())"
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        found.append(subprocess.check_output([sys.executable, "-c", code], env=environment, timeout=HANG))
    assert found[0] == found[1] != found[2]


@pytest.mark.slow(15)
def test_no_kernel_of_an_update_reuses_the_buffer_of_an_input() -> None:
    """By its source PyTorch's compiler measures such a kernel together with a copy of that input."""
    from torch._inductor.utils import run_and_get_code

    def reuses(x: torch.Tensor) -> bool:
        torch._dynamo.reset()
        _, code = run_and_get_code(torch.compile(lambda x: (x @ x + 1.0).relu()), x)
        return "in_out_ptr" in "".join(code)

    with compiling():
        assert not reuses(torch.ones(8, 8))
    assert reuses(torch.ones(8, 8))  # what others compile is compiled as they say


def _key(**settings: object) -> str:
    trainer = Trainer(build("toy/catch", **settings))
    try:
        return trainer._compile_key()
    finally:
        trainer.close()
