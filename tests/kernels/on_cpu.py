"""The Hopper kernels on a CPU: their CUDA source compiled by a C++ compiler, GPU threads as fibers."""

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

HERE = Path(__file__).with_name("cpu")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


@cache
def library(warpgroups: int, states: int) -> ctypes.CDLL:
    """The kernels for blocks of this many warpgroups with so many states each."""
    from playvirtual.kernels import rollout_hopper

    folder = Path(mkdtemp(prefix="rollout_on_cpu"))
    kernels = Path(rollout_hopper.__file__).with_name("rollout_hopper.cu")
    sizes = f"constexpr int WARPGROUPS = {warpgroups}, SW = {states};"
    includes = [f'#include "{path}"' for path in (kernels, HERE / "launches.h")]
    text = [f'#include "{HERE / "gpu_on_cpu.h"}"', sizes, *includes]
    (folder / "all.cpp").write_text("\n".join(text))
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-w"]
    subprocess.run(["g++", *flags, "-o", folder / "all.so", folder / "all.cpp"], check=True)
    found = ctypes.CDLL(str(folder / "all.so"))
    shutil.rmtree(folder)
    return found


def use_cpu(monkeypatch: Any, processors: int, *, lazy: bool = False) -> None:
    """Lets `rollout_hopper` launch on the CPU, as if it had so many SMs."""
    from playvirtual.kernels import cuda_module, rollout_hopper

    def launcher(shape: Any, device: torch.device) -> Any:
        def launch(name: str, grid: int, block: int, shared: int, arguments: list[Any]) -> None:
            pointers, _kept = cuda_module.packed(arguments)
            kernels = library(shape.warpgroups, shape.states)
            assert kernels.launch_on_cpu(name.encode(), grid, block, shared, pointers, int(lazy)) == 0

        return launch

    monkeypatch.setattr(rollout_hopper, "_launcher", launcher)
    monkeypatch.setattr(rollout_hopper, "_processors", lambda device: processors)
