"""Convolutions with ReLU one after the other, for Hopper GPUs and bfloat16: forward, and back with ReLU's gradient.

The kernels are CUDA C++ (convolution_hopper.cu and weight_gradient_hopper.cu), compiled for every size of image. All
layers have stride 1 and 64 outputs, as the encoder of DMControl has after space-to-depth; others go through
`convolution_triton`. The data gradient of a layer, the gradient of the ReLU before it and that layer's bias' gradient
are one launch; weight gradients are an own kernel for less than 64 inputs, else PyTorch's.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# No `from __future__ import annotations`: torch.library reads the operators' signatures at run time.
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from playvirtual import kernels
from playvirtual.kernels import hopper

if kernels.AVAILABLE:
    from playvirtual.kernels.triton import convolution_triton

OUTPUTS = 64  # channels
UNIT = 8  # channels that lie together
MOST_PLANES = 16  # units of inputs
ROUND = 16  # positions that are loaded at a time with zeros around, of no more than two rows
WIDEST = 216  # positions of a tile for which a warpgroup's registers suffice


class Layer(NamedTuple):
    """One convolution: inputs (N, height, width, 8·planes), square filters, zeros around, positions per tile."""

    planes: int
    side: int
    height: int
    width: int
    pad: int
    columns: int

    @property
    def name(self) -> str:
        """The kernel's name in its source."""
        return "convolution"

    @property
    def threads(self) -> int:
        """Threads of a block: two warpgroups that compute, four warps that bring them images."""
        return 384

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
        """The kernel in CUDA C++, for these sizes."""
        constants = {name.upper(): value for name, value in self._asdict().items()}
        return hopper.source("convolution_hopper.cu", constants, self.columns)


class WeightLayer(NamedTuple):
    """The weight gradient of a `Layer` without zeros around, with so many slots per tile."""

    planes: int
    side: int
    height: int
    width: int
    columns: int

    @property
    def name(self) -> str:
        """The kernel's name in its source."""
        return "weight_gradient"

    @property
    def threads(self) -> int:
        """Threads of a block: a warpgroup for each row of taps and one that brings images."""
        return 128 * (self.side + 1)

    @property
    def tiles(self) -> int:
        """Tiles of one image."""
        less = self.side - 1
        return -(-((self.height - less - 1) * self.width + self.width - less) // self.columns)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block: three tiles of images and of gradients."""
        slots = self.columns + (self.side - 1) * (self.width + 1)
        return 3 * 16 * (self.planes * ((slots + 2) // 8 * 8 + 5) + 8 * (self.columns + 5))

    @property
    def source(self) -> str:
        """The kernel in CUDA C++, for these sizes."""
        constants = {name.upper(): value for name, value in self._asdict().items()}
        return hopper.source("weight_gradient_hopper.cu", constants, UNIT * self.planes, transposed=True)


@cache
def weight_layer_for(layer: Layer) -> WeightLayer | None:
    """A layer's weight gradient with the tiles that leave least of themselves unused, or None where none fits."""
    found = [WeightLayer(*layer[:4], columns) for columns in range(256, 64, -16)]
    fitting = [one for one in found if one.shared <= hopper.SHARED]
    return min(fitting, key=lambda one: one.tiles * one.columns, default=None)


@cache
def layer_for(channels: int, side: int, height: int, width: int, pad: int) -> Layer | None:
    """The layer with the tiles that leave least of themselves unused, or None where the kernel does not suit it."""
    planes = channels // UNIT
    narrow = height + pad < side or width + pad < (max(side, ROUND) if pad else side)
    if channels % UNIT or planes > MOST_PLANES or (planes % 2 and side % 2) or narrow:
        return None
    widths = range(WIDEST, 0, -8)
    layers = [Layer(planes, side, height, width, pad, columns) for columns in widths]
    layers = [
        layer for layer in layers if layer.shared <= hopper.SHARED and (layer.columns > WIDEST // 2 or layer.tiles == 1)
    ]
    return min(layers, key=lambda layer: layer.tiles * layer.columns, default=None)


def layers_for(shape: Sequence[int], filters: Sequence[Sequence[int]]) -> list[Layer | None]:
    """The layers of filters (O, I, side, side) one after the other on images (C, H, W), None for unsuitable ones."""
    channels, height, width = shape
    found: list[Layer | None] = []
    for out, _, side, _ in filters:
        found.append(layer_for(channels, side, height, width, 0) if out == OUTPUTS else None)
        channels, height, width = out, height - side + 1, width - side + 1
    return found


@torch.compiler.assume_constant_result
def usable(device: torch.device, dtype: torch.dtype, shape: tuple[int, ...], filters: list[tuple[int, ...]]) -> bool:
    """Whether the kernel can take images (C, H, W) through convolutions with these filters (O, I, side, side)."""
    if dtype != torch.bfloat16 or not hopper.supported(device):
        return False
    layers = layers_for(shape, filters)
    way_back = [layer_for(OUTPUTS, layer.side, *layer.output, layer.side - 1) for layer in layers[1:] if layer]
    weights = [weight_layer_for(layer) for layer in layers if layer and layer.planes * UNIT < OUTPUTS]
    needed: list[hopper.Kernel | None] = [*layers, *way_back, *weights]
    return all(kernel is not None and hopper.fits(kernel, device) for kernel in needed)


def _run(layer: Layer | None, x: Tensor, arguments: list[Any]) -> None:
    assert layer is not None
    blocks = min(hopper.processors(x.device), -(-len(x) * layer.tiles // 2))
    hopper.launch(layer, x.device, blocks, [x, *arguments, len(x)])


def arranged(weight: Tensor) -> Tensor:
    """Filters (O, I, side, side) in the kernel's order (side, units of 8 inputs, O, 8).

    The units of a row of taps come tap by tap, but where their number is odd the last ones of all taps at the end.
    """
    units: Tensor = weight.unflatten(1, (-1, UNIT)).permute(3, 4, 1, 0, 2)  # (side, side, planes, O, 8)
    if units.shape[2] % 2 == 0:
        return units.flatten(1, 2).contiguous()
    return torch.cat([units[:, :, :-1].flatten(1, 2), units[:, :, -1]], 1)


def _turned(weight: Tensor) -> Tensor:
    """The filters of the data gradient, in the kernel's order."""
    return arranged(weight.flip(2, 3).transpose(0, 1))


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


@torch.library.custom_op("playvirtual::hopper_conv_weights_back", mutates_args=())
def weights_backward_op(g: Tensor, x: Tensor, side: int) -> Tensor:
    """The weights' gradient (O, I, side, side) float32 for x (N, H, W, I) and that of the output, g (N, H′, W′, O)."""
    _, height, width, channels = x.shape
    forward = layer_for(channels, side, height, width, 0)
    layer = weight_layer_for(forward) if forward else None
    assert layer is not None
    blocks = min(hopper.processors(x.device), len(x) * layer.tiles)
    sums = x.new_empty(blocks, side, side, OUTPUTS, channels, dtype=torch.float32)
    hopper.launch(layer, x.device, blocks, [x, g, sums, len(x)])
    return sums.sum(0).permute(2, 3, 0, 1)


@weights_backward_op.register_fake
def _(g, x, side):
    return x.new_empty(side, side, OUTPUTS, x.shape[-1], dtype=torch.float32).permute(2, 3, 0, 1)


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


def _weights_backward(g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The weights' gradient, of their type: cuDNN's kernel is the faster one for 64 inputs, not for fewer."""
    if x.shape[-1] < OUTPUTS:
        own: Tensor = weights_backward_op(g, x, weight.shape[2]).to(weight.dtype)
        return own
    images = [t.permute(0, 3, 1, 2) for t in (g, x)]
    arguments = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False])
    found: Tensor = torch.ops.aten.convolution_backward(*images, weight, *arguments)[1]  # channels last
    return found.contiguous()  # as the parameters are: autograd would copy what is in another order


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    x, *rest = ctx.saved_tensors
    weights, outputs = rest[: ctx.depth], rest[ctx.depth :]
    assert grads[-1] is not None
    inputs = [x, *outputs[:-1]]
    g, db = convolution_triton.relu_backward_op(grads[-1], outputs[-1])
    dweights, dbiases = [], [db]
    for i in reversed(range(ctx.depth)):
        dweights.append(_weights_backward(g, inputs[i], weights[i]))
        if i:
            g, db = backward_op(g, _turned(weights[i]), inputs[i])
            dbiases.append(db)
    dx = None
    if ctx.needs_input_grad[0]:
        dx = F.conv_transpose2d(g.permute(0, 3, 1, 2), weights[0]).permute(0, 2, 3, 1)
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
