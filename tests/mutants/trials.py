"""Tests run on copies of the code, each in a process that is forked off after PyTorch and others were imported."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.faults import ROOT, SOURCE, Fault

FAILED, HUNG = 1, 124  # pytest's exit status where tests ran and some failed; ours where they did not end
TIMEOUT = 600.0  # seconds after which the tests of one fault hang and are ended
SLOW_IMPORTS = ("triton", "torch", "torch._dynamo", "numpy", "gymnasium", "hypothesis.strategies", "pytest", "ale_py")


@dataclass(frozen=True)
class Outcome:
    """What became of one fault."""

    fault: Fault
    status: str  # "caught", "passed", "moved" (it no longer applies) or "broken" (the tests could not run)
    by: str = ""  # the test that noticed it, or what is wrong with the fault
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """A fault that must be noticed was, or one that is said to be equivalent was not."""
        return self.status == ("passed" if self.fault.equivalent else "caught")

    def line(self) -> str:
        """The outcome for a terminal."""
        said = "equivalent" if self.fault.equivalent else ""
        said = said if self.good else f"<-- said to be {said}" if said else "<--"
        return (
            f"{self.status:7} {self.seconds:5.1f} s  {self.fault.group}: {self.fault.name}  {self.by} {said}".rstrip()
        )


@dataclass
class Trial:
    """Tests that are running in a process of their own, with `source` in the place of src."""

    process: int
    output: Path
    timeout: float
    begin: float = field(default_factory=time.monotonic)
    _code: int | None = None

    @classmethod
    def start(cls, tests: Sequence[str], source: Path, timeout: float = TIMEOUT) -> Trial:
        """Starts the tests, up to the first that fails."""
        descriptor, output = tempfile.mkstemp(prefix="mutant-", suffix=".txt")
        _import_slow_modules()
        process = os.fork()
        if process == 0:
            _run_tests(tests, source, descriptor)
        os.close(descriptor)
        return cls(process, Path(output), timeout)

    @property
    def ended(self) -> bool:
        """Whether the tests have ended; ends them where they hang."""
        if self._code is None:
            done, status = os.waitpid(self.process, os.WNOHANG)
            if done:
                self._code = os.waitstatus_to_exitcode(status)
            elif self.seconds > self.timeout:
                with suppress(ProcessLookupError):
                    os.killpg(self.process, signal.SIGKILL)
                os.waitpid(self.process, 0)
                self._code = HUNG
        return self._code is not None

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.begin

    def wait(self) -> tuple[int, str]:
        """Pytest's exit status, and the first test that failed or, if there is none, the end of the output."""
        while not self.ended:
            time.sleep(0.02)
        assert self._code is not None
        text = self.output.read_text(encoding="utf-8", errors="replace")
        self.output.unlink()
        failures = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
        return self._code, failures[0] if failures else "" if self._code == 0 else text[-500:]


def carry_out(faults: Sequence[Fault], jobs: int) -> Iterator[Outcome]:
    """Tries `jobs` faults at a time and yields their outcomes as they come."""
    waiting, running = deque(faults), dict[str, tuple[Fault, Trial, Path]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                fault = waiting.popleft()
                if problem := fault.problem():
                    yield Outcome(fault, "moved", problem)
                    continue
                folder = Path(tempfile.mkdtemp(prefix="mutant-"))
                shutil.copytree(SOURCE, folder / "playvirtual")
                fault.apply(folder / "playvirtual")
                running[fault.name] = fault, Trial.start(fault.tests, folder), folder
            for fault, trial, folder in [entry for entry in running.values() if entry[1].ended]:
                shutil.rmtree(folder)
                del running[fault.name]
                code, by = trial.wait()
                if code == HUNG:
                    by = f"the tests had not ended after {TIMEOUT:.0f} s"
                status = {0: "passed", FAILED: "caught", HUNG: "caught"}.get(code, "broken")
                yield Outcome(fault, status, by, trial.seconds)
            time.sleep(0.02)
    finally:
        for _, trial, folder in running.values():
            with suppress(ProcessLookupError):
                os.killpg(trial.process, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)


def _import_slow_modules() -> None:
    """Imports what all tests need and nothing of this project, so that forked processes need not."""
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # read when PyTorch is imported
    for name in SLOW_IMPORTS:
        with suppress(ImportError):
            importlib.import_module(name)
    assert "playvirtual" not in sys.modules, "a fork would have the code without the fault"


def _run_tests(tests: Sequence[str], source: Path, output: int) -> None:
    """The forked process: never returns."""
    import pytest

    code = 3  # pytest's for an internal error
    try:
        os.setsid()  # a group of its own, to be ended together with what the tests start
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(ROOT)
        os.environ |= {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(source), str(ROOT)]
        code = int(pytest.main(["-x", "-q", "--tb=no", "-p", "no:cacheprovider", *tests]))
    finally:
        sys.stdout.flush()
        os._exit(code)
