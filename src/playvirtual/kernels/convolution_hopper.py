"""Convolutions with ReLU one after the other, for Hopper GPUs and bfloat16: forward, and back with ReLU's gradient.

The kernel is CUDA C++ (convolution_hopper.cu), compiled for every size of image. All layers have stride 1 and 64
outputs, as the encoder of DMControl has after space-to-depth; others go through `convolution_triton`. The data gradient
of a layer, the gradient of the ReLU before it and that layer's bias' gradient are one launch; weight gradients are
PyTorch's own.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# No `from __future__ import annotations`: torch.library reads the operators' signatures at run time.
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from playvirtual import kernels
from playvirtual.kernels import hopper
from playvirtual.kernels.cuda_module import CudaError, CudaModule, compiled, has_compiler

if kernels.AVAILABLE:
    from playvirtual.kernels import convolution_triton

OUTPUTS = 64  # channels
UNIT = 8  # channels that lie together
THREADS = 384  # of a block: two warpgroups that compute, four warps that bring them images
WIDEST = 216  # positions of a tile for which a warpgroup's registers suffice
SHARED = 232_448  # bytes of shared memory that a block may have on Hopper

Launch = Callable[[int, list[Any]], None]  # blocks, arguments


class Layer(NamedTuple):
    """One convolution: inputs (N, height, width, 8·planes), square filters, zeros around, positions per tile."""

    planes: int
    side: int
    height: int
    width: int
    pad: int
    columns: int

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of the outputs."""
        more = 2 * self.pad - self.side + 1
        return self.height + more, self.width + more

    @property
    def tiles(self) -> int:
        """Tiles of one image."""
        height, width = self.output
        return -(-((height - 1) * (self.width + self.pad) + width) // self.columns)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block: the filter, four tiles, sums of eight warps."""
        slots = self.columns + (self.side - 1) * (self.width + self.pad + 1)
        plane = (slots + 2) // 8 * 8 + 5
        buffer = max(self.planes * plane, 8 * (self.columns + 5))
        return 16 * (self.side**2 * self.planes * OUTPUTS + 4 * buffer) + 8 * OUTPUTS * 4

    @property
    def source(self) -> str:
        """Its kernel's source."""
        constants = {name.upper(): value for name, value in self._asdict().items()}
        return hopper.source("convolution_hopper.cu", constants, self.columns)


@cache
def layer_for(channels: int, side: int, height: int, width: int, pad: int) -> Layer | None:
    """The layer with the tiles that leave least of themselves unused, or None where the kernel does not suit it."""
    planes = channels // UNIT
    if channels % UNIT or planes > UNIT or (planes % 2 and side % 2) or min(height, width) < side:
        return None
    widths = range(WIDEST, 0, -8)
    layers = [Layer(planes, side, height, width, pad, columns) for columns in widths]
    layers = [layer for layer in layers if layer.shared <= SHARED and layer.columns > WIDEST // 2]
    return min(layers, key=lambda layer: layer.tiles * layer.columns, default=None)


def layers_for(shape: Sequence[int], filters: Sequence[Sequence[int]]) -> list[Layer | None]:
    """The layers of filters (O, I, side, side) one after the other on images (N, C, H, W), None for unsuitable ones."""
    _, channels, height, width = shape
    found: list[Layer | None] = []
    for out, _, side, _ in filters:
        found.append(layer_for(channels, side, height, width, 0) if out == OUTPUTS else None)
        channels, height, width = out, height - side + 1, width - side + 1
    return found


@torch.compiler.assume_constant_result
def usable(device: torch.device, dtype: torch.dtype, shape: tuple[int, ...], filters: list[tuple[int, ...]]) -> bool:
    """Whether the kernel can take images (N, C, H, W) through convolutions with these filters (O, I, side, side)."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return False
    if torch.cuda.get_device_capability(device) != (9, 0) or not has_compiler():
        return False
    layers = layers_for(shape, filters)
    way_back = [layer_for(OUTPUTS, layer.side, *layer.output, layer.side - 1) for layer in layers[1:] if layer]
    return all(layer is not None and _fits(layer, device.index or 0) for layer in (*layers, *way_back))


@cache
def _module(layer: Layer, _device: int) -> CudaModule:
    return CudaModule(compiled(layer.source, "sm_90a"))


@cache
def _fits(layer: Layer, device: int) -> bool:
    try:
        return _module(layer, device).resident("convolution", THREADS, layer.shared) > 0
    except CudaError:
        return False


def _launcher(layer: Layer, device: torch.device) -> Launch:
    """Launches on the GPU; a test replaces it."""
    module = _module(layer, device.index or 0)

    def launch(blocks: int, arguments: list[Any]) -> None:
        module.launch("convolution", blocks, THREADS, layer.shared, arguments, cooperative=False)

    return launch


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _run(layer: Layer | None, x: Tensor, arguments: list[Any]) -> None:
    assert layer is not None
    blocks = min(_processors(x.device), -(-len(x) * layer.tiles // 2))
    _launcher(layer, x.device)(blocks, [x, *arguments, len(x)])


def arranged(weight: Tensor) -> Tensor:
    """Filters (O, I, side, side) in the kernel's order (side, units of 8 inputs, O, 8).

    The units of a row of taps come tap by tap, but where their number is odd the last ones of all taps at the end.
    """
    units: Tensor = weight.unflatten(1, (-1, UNIT)).permute(3, 4, 1, 0, 2)  # (side, side, planes, O, 8)
    if units.shape[2] % 2 == 0:
        return units.flatten(1, 2).contiguous()
    return torch.cat([units[:, :, :-1].flatten(1, 2), units[:, :, -1]], 1)


@torch.library.custom_op("playvirtual::hopper_conv_relu", mutates_args=())
def conv_relu_op(x: Tensor, filters: Tensor, bias: Tensor) -> Tensor:
    """relu(x * filters + bias): x (N, H, W, I) bfloat16, filters `arranged`, bias (O,) -> (N, H′, W′, O)."""
    _, height, width, channels = x.shape
    y = _outputs(x, filters)
    _run(layer_for(channels, len(filters), height, width, 0), x, [filters, bias, None, y, None])
    return y


def _outputs(x: Tensor, filters: Tensor) -> Tensor:
    (N, height, width, _), less = x.shape, len(filters) - 1
    return x.new_empty(N, height - less, width - less, OUTPUTS)


@conv_relu_op.register_fake
def _(x, filters, bias):
    return _outputs(x, filters)


@torch.library.custom_op("playvirtual::hopper_conv_relu_back", mutates_args=())
def backward_op(g: Tensor, filters: Tensor, x: Tensor) -> list[Tensor]:
    """From the gradient g (N, H′, W′, O) of a convolution's output: [that before the ReLU which made its input x
    (N, H, W, I), sums of it over all positions (I,)]. The filters are `arranged`, flipped and with O and I exchanged.
    """
    _, height, width, channels = g.shape
    dx, sums = torch.empty_like(x), torch.zeros(OUTPUTS, device=x.device)
    side = len(filters)
    _run(layer_for(channels, side, height, width, side - 1), g, [filters, None, x, dx, sums])
    return [dx, sums]


@backward_op.register_fake
def _(g, filters, x):
    return [torch.empty_like(x), x.new_empty(OUTPUTS, dtype=torch.float32)]


@torch.library.custom_op("playvirtual::hopper_conv_relus", mutates_args=())
def conv_relus_op(x: Tensor, weights: list[Tensor], filters: list[Tensor], biases: list[Tensor]) -> list[Tensor]:
    """Every layer's outputs (N, H′, W′, O) of x (N, H, W, I); `filters` are the `arranged` weights (O, I, side, side).

    Gradients are those of x, weights and biases, by way of the last layer's outputs.
    """
    outputs: list[Tensor] = []
    for layer, bias in zip(filters, biases, strict=True):
        outputs.append(conv_relu_op(outputs[-1] if outputs else x, layer, bias))
    return outputs


@conv_relus_op.register_fake
def _(x, weights, filters, biases):
    outputs: list[Tensor] = []
    for layer in filters:
        outputs.append(_outputs(outputs[-1] if outputs else x, layer))
    return outputs


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, weights, _, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, *weights, *output)
    ctx.depth = len(weights)


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    x, *rest = ctx.saved_tensors
    weights, outputs = rest[: ctx.depth], rest[ctx.depth :]
    assert grads[-1] is not None
    inputs = [x, *outputs[:-1]]
    g, db = convolution_triton.relu_backward_op(grads[-1], outputs[-1])
    dweights, dbiases = [], [db]
    for i in reversed(range(ctx.depth)):
        mask = [i == 0 and ctx.needs_input_grad[0], True, False]
        images = [t.permute(0, 3, 1, 2) for t in (g, inputs[i])]
        din, dw, _ = torch.ops.aten.convolution_backward(
            *images, weights[i], None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask
        )
        dweights.append(dw)
        if i:
            g, db = backward_op(g, arranged(weights[i].flip(2, 3).transpose(0, 1)), inputs[i])
            dbiases.append(db)
    dx = din.permute(0, 2, 3, 1) if ctx.needs_input_grad[0] else None
    return dx, dweights[::-1], [None] * ctx.depth, dbiases[::-1]


conv_relus_op.register_autograd(_backward, setup_context=_save)


def conv_relus(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """relu(conv2d(…)) layer after layer with stride 1, of (N, I, H, W) bfloat16 images -> (N, O, H′, W′)."""
    low = [weight.to(x.dtype).contiguous(memory_format=torch.channels_last) for weight in weights]
    filters, b = [arranged(weight.detach()) for weight in low], [bias.float() for bias in biases]
    y = x.permute(0, 2, 3, 1).contiguous()
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, *weights, *biases)):
        y = conv_relus_op(y, low, filters, b)[-1]
    else:
        for layer, bias in zip(filters, b, strict=True):
            y = conv_relu_op(y, layer, bias)
    return y.permute(0, 3, 1, 2)
