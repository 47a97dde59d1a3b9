"""CUDA C++ at run time: compiled by NVRTC, which comes with PyTorch, and launched through the driver."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from pathlib import Path

import torch

MAX_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CudaError(RuntimeError):
    """A call of the driver or of the compiler failed."""


class CompilerError(CudaError):
    """The compiler is not there, or refuses a source."""


class CudaModule:
    """The kernels of one source, on the device that is current when it is made."""

    def __init__(self, image: bytes) -> None:
        torch.cuda.current_stream().synchronize()  # makes PyTorch's context the current one
        self._module = c_void_p()
        _driver("cuModuleLoadData", byref(self._module), image)
        self._functions: dict[str, c_void_p] = {}
        self._shared: dict[str, int] = {}  # the most shared memory that each was allowed

    def _function(self, name: str, shared: int) -> c_void_p:
        if name not in self._functions:
            function = c_void_p()
            _driver("cuModuleGetFunction", byref(function), self._module, name.encode())
            self._functions[name] = function
        if shared > self._shared.get(name, 0):
            _driver("cuFuncSetAttribute", self._functions[name], MAX_SHARED, c_int(shared))
            self._shared[name] = shared
        return self._functions[name]

    def resident(self, name: str, block: int, shared: int) -> int:
        """How many blocks of this size an SM holds at a time."""
        blocks = c_int()
        function = self._function(name, shared)
        _driver("cuOccupancyMaxActiveBlocksPerMultiprocessor", byref(blocks), function, c_int(block), c_size_t(shared))
        return blocks.value

    def launch(
        self,
        name: str,
        grid: int,
        block: int,
        shared: int,
        arguments: list[torch.Tensor | int | None],
        *,
        cooperative: bool = True,
    ) -> None:
        """One launch on PyTorch's current stream; a cooperative one runs all blocks at the same time, or none."""
        pointers, _kept = packed(arguments)
        stream = c_void_p(torch.cuda.current_stream().cuda_stream)
        size = [c_uint(n) for n in (grid, 1, 1, block, 1, 1, shared)]
        if cooperative:
            _driver("cuLaunchCooperativeKernel", self._function(name, shared), *size, stream, pointers)
        else:
            _driver("cuLaunchKernel", self._function(name, shared), *size, stream, pointers, None)


def packed(arguments: list[torch.Tensor | int | None]) -> tuple[ctypes.Array[c_void_p], list[c_void_p | c_int]]:
    """Addresses of the arguments, as launches take them, and what has to live until they are read."""
    values: list[c_void_p | c_int] = [
        c_int(a) if isinstance(a, int) else c_void_p(None if a is None else a.data_ptr()) for a in arguments
    ]
    return (c_void_p * len(values))(*(ctypes.addressof(value) for value in values)), values


def compiled(source: str, architecture: str) -> bytes:
    """Machine code for an architecture such as sm_90a, from the cache if this source was compiled before."""
    key = hashlib.sha256(f"{_nvrtc_version()} {architecture} {source}".encode()).hexdigest()
    path = _cache_folder() / f"{key}.cubin"
    with contextlib.suppress(OSError):
        return path.read_bytes()
    image = _compile(source, architecture)
    with contextlib.suppress(OSError):  # a cache that cannot be written is no reason to stop
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(image)
        part.replace(path)
    return image


def has_compiler() -> bool:
    """Whether NVRTC can be loaded."""
    return _nvrtc_library() is not None


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "playvirtual" / "cuda"


def _compile(source: str, architecture: str) -> bytes:
    program = c_void_p()
    _nvrtc("nvrtcCreateProgram", byref(program), source.encode(), b"playvirtual.cu", 0, None, None)
    try:
        options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
        try:
            _nvrtc("nvrtcCompileProgram", program, len(options), (c_char_p * len(options))(*options))
        except CompilerError as error:
            raise CompilerError(f"{error}\n{_read(program, 'nvrtcGetProgramLog').decode(errors='replace')}") from None
        return _read(program, "nvrtcGetCUBIN")
    finally:
        _nvrtc("nvrtcDestroyProgram", byref(program))


def _read(program: c_void_p, what: str) -> bytes:
    size = c_size_t()
    _nvrtc(f"{what}Size", program, byref(size))
    text = ctypes.create_string_buffer(size.value)
    _nvrtc(what, program, text)
    return text.raw


@cache
def _nvrtc_library() -> ctypes.CDLL | None:
    major = (torch.version.cuda or "0").split(".")[0]
    names = [f"libnvrtc.so.{major}"]
    for folder in sys.path:  # PyTorch's wheels bring it as a package of its own
        names += map(str, Path(folder or ".").glob(f"nvidia/*/lib/libnvrtc.so.{major}"))
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _nvrtc_version() -> str:
    major, minor = c_int(), c_int()
    _nvrtc("nvrtcVersion", byref(major), byref(minor))
    return f"{major.value}.{minor.value}"


def _nvrtc(name: str, *arguments: object) -> None:
    library = _nvrtc_library()
    if library is None:
        raise CompilerError("NVRTC, CUDA's compiler that comes with PyTorch, was not found")
    if code := getattr(library, name)(*arguments):
        library.nvrtcGetErrorString.restype = c_char_p
        raise CompilerError(f"{name}: {library.nvrtcGetErrorString(code).decode()}")


@cache
def _driver_library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _driver(name: str, *arguments: object) -> None:
    if code := getattr(_driver_library(), name)(*arguments):
        text = c_char_p()
        _driver_library().cuGetErrorString(code, byref(text))
        raise CudaError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")
