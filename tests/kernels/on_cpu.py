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
ROLLOUTS = ("rollout_forward", "rollout_backward", "pack_filters")
GRADIENTS = ("parameter_gradients", "add_partials")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


@cache
def library(file: str, kernels: tuple[str, ...], sizes: str = "") -> ctypes.CDLL:
    """A file's kernels, entered by ctypes in the place of the driver's launches."""
    from playvirtual.kernels import cuda_module

    folder = Path(mkdtemp(prefix="rollout_on_cpu"))
    source = Path(cuda_module.__file__)
    includes = [f'#include "{source.with_name(name)}"' for name in ("hopper.cuh", file)]
    launches = [
        'extern "C" int launch_on_cpu(const char *name, int grid, int block, int shared, void **args, int lazy) {',
        "LAZY = lazy;",
        *(f'if (!strcmp(name, "{name}")) return launch({name}, grid, block, shared, args), 0;' for name in kernels),
        "return 1;}",
    ]
    text = [f'#include "{HERE / "gpu_on_cpu.h"}"', sizes, *includes, *launches]
    (folder / "all.cpp").write_text("\n".join(text))
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-w"]
    subprocess.run(["g++", *flags, "-o", folder / "all.so", folder / "all.cpp"], check=True)
    found = ctypes.CDLL(str(folder / "all.so"))
    shutil.rmtree(folder)
    return found


def use_cpu(monkeypatch: Any, processors: int, *, lazy: bool = False) -> None:
    """Lets rollouts and their parameters' gradients be launched on the CPU, as if it had so many SMs."""
    from playvirtual.kernels import cuda_module, gradients_hopper, rollout_hopper

    def launcher(kernels: ctypes.CDLL) -> Any:
        def launch(name: str, grid: int, block: int, shared: int, arguments: list[Any], together: bool = False) -> None:
            pointers, _kept = cuda_module.packed(arguments)
            assert kernels.launch_on_cpu(name.encode(), grid, block, shared, pointers, int(lazy)) == 0

        return launch

    def rollouts(shape: Any, device: torch.device) -> Any:
        sizes = rollout_hopper.sizes(shape.warpgroups, shape.states)
        return launcher(library("rollout_hopper.cu", ROLLOUTS, sizes))

    def gradients(device: torch.device) -> Any:
        return launcher(library("gradients_hopper.cu", GRADIENTS))

    monkeypatch.setattr(rollout_hopper, "_launcher", rollouts)
    monkeypatch.setattr(gradients_hopper, "_launcher", gradients)
    for module in (rollout_hopper, gradients_hopper):
        monkeypatch.setattr(module, "processors", lambda device: processors)
