"""Triton's compiler accepts the kernels for GPUs that are not here, and they fit their shared memory."""

from typing import Any

import pytest
import torch

from tests.interpreted import needs_triton

pytestmark = [needs_triton, pytest.mark.slow]


@pytest.fixture(autouse=True)
def unoptimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's assembler takes the longest, most of it to optimise; shared memory is allocated before it."""
    import triton

    monkeypatch.setattr(triton.knobs.nvidia, "disable_ptxas_opt", True)


HOPPER, ADA = 90, 89  # an H200; an RTX of the 40 series
SHARED = {HOPPER: 232_448, ADA: 101_376}  # bytes that one program may have there


def shared_memory(kernel: Any, types: dict[str, str], constants: dict[str, Any], gpu: int) -> int:
    """Compiles a kernel for a GPU; returns the bytes of shared memory that a program takes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(enumerate(kernel.arg_names))
    source = ASTSource(
        kernel,
        {name: "constexpr" if name in constants else types[name] for _, name in names},
        {(i,): constants[name] for i, name in names if name in constants},
        {(i,): [["tt.divisibility", 16]] for i, name in names if types.get(name, "").startswith("*")},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", gpu, 32), options={"num_warps": 4})
    return int(compiled.metadata.shared)


@pytest.mark.parametrize("gpu", [HOPPER, ADA])
@pytest.mark.parametrize("number", ["bf16", "fp32"])
def test_rollouts_compile(gpu: int, number: str) -> None:
    from playvirtual.kernels.triton import rollout_triton

    dtype = torch.bfloat16 if number == "bf16" else torch.float32
    settings = {**rollout_triton.launch_settings(64, 7, 7), **rollout_triton.product_settings(dtype), "IP": "tf32"}
    constants = {name: value for name, value in settings.items() if name != "num_warps"}
    x, f = f"*{number}", "*fp32"
    maps = {"ranges": f, "places": "*i32", "num_kept": "i32", "x1": x, "sums": f}
    back = {**maps, "g": x, "g_kept": x, "g_last": x, "z": x, "w2": x, "du": x, "dy": x, "dsums": f}
    eps = {"bn_eps": 1e-5, "range_eps": 1e-6}
    flags = {"WHOLE": False, "KEPT": True, "LAST": True}
    assert shared_memory(rollout_triton.second_half_backward, back, {**flags, **eps, **constants}, gpu) <= SHARED[gpu]
    step = {**maps, "gamma": f, "beta": f, "w2": x, "b2": f, "y": x, "out": x, "w1": x, "maps": f, "actions": "*i64"}
    step |= {"next_x1": x, "next_sums": f}
    assert shared_memory(rollout_triton.step, step, {"LAST": False, **eps, **constants}, gpu) <= SHARED[gpu]


@pytest.mark.parametrize("gpu", [HOPPER, ADA])
@pytest.mark.parametrize(
    ("inputs", "outputs", "side", "stride"),
    [(40, 64, 2, 1), (64, 64, 3, 1), (64, 128, 3, 1), (40, 32, 2, 1), (32, 32, 3, 1), (4, 32, 5, 5), (32, 64, 5, 5)],
)
@pytest.mark.parametrize("number", ["bf16", "fp32"])
def test_convolutions_compile(gpu: int, inputs: int, outputs: int, side: int, stride: int, number: str) -> None:
    from playvirtual.kernels.triton import convolution_triton

    dtype = torch.bfloat16 if number == "bf16" else torch.float32
    tiles = {**convolution_triton.tile_sizes(dtype), "IP": "tf32"}
    out = (20 - side) // stride + 1
    sizes = {"H": 20, "W": 20, "HO": out, "WO": out, "CI": inputs, "CO": outputs, "R": side, "S": side}
    constants = {**sizes, "STRIDE": stride, **{name: value for name, value in tiles.items() if name != "num_warps"}}
    types = {"x": f"*{number}", "w": f"*{number}", "b": "*fp32", "y": f"*{number}", "rows": "i32"}
    assert shared_memory(convolution_triton.conv_relu_kernel, types, constants, gpu) <= SHARED[gpu]


@pytest.mark.parametrize(("channels", "height", "block"), [(9, 100, 2), (4, 84, 4), (9, 84, 2), (4, 84, 1)])
def test_crops_compile(channels: int, height: int, block: int) -> None:
    from playvirtual.kernels.space_to_depth import depth_channels
    from playvirtual.kernels.triton import crop_triton

    types = {"images": "*u8", "offsets": "*i64", "source": "*i64", "factor": "*fp32", "out": "*bf16"}
    sizes = {"C": channels, "H": height, "W": height, "SIZE": 84, "BLOCK": block, "XS": 128, "CS": 16}
    constants = {**sizes, "STEP": channels * height**2, "CB": depth_channels(channels, block), "CLAMP": height == 84}
    assert shared_memory(crop_triton.crop_kernel, types, constants, HOPPER) <= SHARED[HOPPER]


@pytest.mark.parametrize("gpu", [HOPPER, ADA])
@pytest.mark.parametrize(("word", "words"), [("i64", 882), ("i64", 3750), ("i32", 25), ("i16", 3), ("u8", 1505)])
def test_gathers_compile(gpu: int, word: str, words: int) -> None:
    from playvirtual.kernels.triton import gather_triton

    types = {"rows": f"*{word}", "index": "*i64", "out": f"*{word}"}
    constants = {"STEP": words, "WORDS": words, "BLOCK": 1024}
    assert shared_memory(gather_triton.gather_kernel, types, constants, gpu) == 0


@pytest.mark.parametrize("aligned", [True, False])
def test_clipped_adam_compiles(aligned: bool) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from playvirtual.kernels.triton import adam_triton

    i, f = "*i64", "*fp32"
    tables = {"table": i, "addresses": i, "squares": f, "norms": f, "step": f, "lr": "fp32", "eps": "fp32"}
    tiles = {"FIELDS": adam_triton.FIELDS, "CHUNK": adam_triton.CHUNK, "ALIGNED": aligned}
    betas = {"BETA1": 0.9, "BETA2": 0.999, "LOG_BETA1": -0.105, "LOG_BETA2": -0.001}
    limits = {**tables, "max_norm": "fp32"}
    assert shared_memory(adam_triton.squares_kernel, tables, tiles, HOPPER) <= SHARED[ADA]
    constants = {**betas, **tiles, "MOST": 2048, "COPY": True}
    assert shared_memory(adam_triton.clipped_adam_kernel, limits, constants, HOPPER) <= SHARED[ADA]
    source = ASTSource(adam_triton.collect_kernel, {"gradients": (f, f, f), "addresses": i}, {}, {})
    triton.compile(source, target=GPUTarget("cuda", HOPPER, 32), options={"num_warps": 1})


@pytest.mark.parametrize("gpu", [HOPPER, ADA])
@pytest.mark.parametrize(("actions", "atoms"), [(6, 51), (18, 51), (3, 101)])
def test_q_learning_compiles(gpu: int, actions: int, atoms: int) -> None:
    import triton

    from playvirtual.kernels.triton.categorical_triton import q_learning_kernel

    inputs = ("logits", "choosing", "valuing", "returns", "discounts", "support")
    numbers = (*inputs, "losses", "priorities", "q", "gradients")
    types = {**dict.fromkeys(numbers, "*fp32"), "taken": "*i64", "A": "i32", "N": "i32"}
    power = triton.next_power_of_2
    assert shared_memory(q_learning_kernel, types, {"AS": power(actions), "NS": power(atoms)}, gpu) <= SHARED[gpu]
