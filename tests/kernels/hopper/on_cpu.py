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

import playvirtual

HERE = Path(__file__).with_name("cpu")
KERNELS = Path(playvirtual.__file__).parent / "kernels" / "hopper"
ROLLOUTS = ("rollout_forward", "rollout_backward", "pack_filters")
GRADIENTS = ("parameter_gradients", "add_partials")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


@cache
def library(
    source: str, constants: tuple[tuple[str, int], ...], kernels: tuple[str, ...], transposed: bool = False
) -> ctypes.CDLL:
    """The kernels of that name in a source of `playvirtual.kernels`, for these constants; see `hopper.products`."""
    folder = Path(mkdtemp(prefix="kernels_on_cpu"))
    sizes = [f"constexpr int {name} = {value};" for name, value in constants]
    sources = [f'#include "{KERNELS / name}"' for name in ("hopper.cuh", source)]
    launches = [f'if (!strcmp(name, "{k}")) return launch({k}, grid, block, shared, args), 0;' for k in kernels]
    enter = 'extern "C" int launch_on_cpu(const char *name, int grid, int block, int shared, void **args, int lazy) {'
    text = [f'#include "{HERE / "gpu_on_cpu.h"}"', *sizes, *sources, enter, "LAZY = lazy;", *launches, "return 1; }"]
    (folder / "all.cpp").write_text("\n".join(text))
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-w", f"-DTRANSPOSED={str(transposed).lower()}"]
    subprocess.run(["g++", *flags, "-o", folder / "all.so", folder / "all.cpp"], check=True)
    found = ctypes.CDLL(str(folder / "all.so"))
    shutil.rmtree(folder)
    return found


def use_cpu(monkeypatch: Any, processors: int, *, lazy: bool = False) -> None:
    """Lets rollouts and their parameters' gradients launch on the CPU, as if it had so many SMs."""
    from playvirtual.kernels import hopper
    from playvirtual.kernels.hopper import cuda_module, gradients_hopper, rollout_hopper

    def launcher(kernels: ctypes.CDLL) -> Any:
        def launch(name: str, grid: int, block: int, shared: int, arguments: list[Any], **_options: bool) -> None:
            pointers, _kept = cuda_module.packed(arguments)
            assert kernels.launch_on_cpu(name.encode(), grid, block, shared, pointers, int(lazy)) == 0

        return launch

    def rollouts(shape: Any, device: torch.device) -> Any:
        constants = rollout_hopper.constants(shape.warpgroups, shape.states)
        return launcher(library("rollout_hopper.cu", tuple(constants.items()), ROLLOUTS))

    def gradients(device: torch.device) -> Any:
        return launcher(library("gradients_hopper.cu", (), GRADIENTS))

    monkeypatch.setattr(rollout_hopper, "_launcher", rollouts)
    monkeypatch.setattr(gradients_hopper, "_launcher", gradients)
    monkeypatch.setattr(hopper, "processors", lambda device: processors)


def use_cpu_for_others(monkeypatch: Any, processors: int, *, lazy: bool = False) -> None:
    """Lets all other kernels for Hopper launch on the CPU, as if it had so many SMs."""
    from playvirtual.kernels import hopper
    from playvirtual.kernels.hopper import cuda_module

    def launch(kernel: Any, device: torch.device, blocks: int, arguments: list[Any]) -> None:
        pointers, _kept = cuda_module.packed(arguments)
        constants = tuple((name.upper(), value) for name, value in kernel._asdict().items())
        entered = (kernel.name.encode(), blocks, kernel.threads, kernel.shared, pointers, int(lazy))
        compiled = library(f"{kernel.name}_hopper.cu", constants, (kernel.name,), kernel.name == "weight_gradient")
        assert compiled.launch_on_cpu(*entered) == 0

    monkeypatch.setattr(hopper, "launch", launch)
    monkeypatch.setattr(hopper, "processors", lambda device: processors)
