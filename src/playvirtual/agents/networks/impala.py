"""The residual encoder of IMPALA (Espeholt et al. 2018), widened, as BBF has it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from playvirtual.agents.networks.rainbow import PixelEncoder

POOL = 3  # side of the windows of max-pooling


class ImpalaEncoder(PixelEncoder):
    """Stages of a convolution, max-pooling by a stride and residual blocks, then ReLU; padded, so that only pooling
    makes maps smaller: 84 × 84 pixels become 42, 21 and 11."""

    def __init__(
        self,
        frame_shape: tuple[int, int, int],
        channels: Sequence[int],
        kernel_sizes: Sequence[int],
        strides: Sequence[int],
        blocks: int,
        latent: int,
        *,
        rescaled: bool = True,
        background: float = 0.0,
    ) -> None:
        super().__init__()
        c, height, width = frame_shape
        self.convs, self.blocks, self.strides = nn.ModuleList(), nn.ModuleList(), tuple(strides)
        for out, size, stride in zip(channels, kernel_sizes, strides, strict=True):
            self.convs.append(_conv(c, out, size))
            self.blocks.append(nn.Sequential(*(ResidualBlock(out, size) for _ in range(blocks))))
            c, height, width = out, -(-height // stride), -(-width // stride)
        self._finish((c, height, width), latent, rescaled=rescaled, background=background)

    def feature_maps(self, x: Tensor) -> Tensor:
        for conv, blocks, stride in zip(self.convs, self.blocks, self.strides, strict=True):
            x = F.max_pool2d(conv(x), POOL, stride, POOL // 2)
            x = blocks(x)
        return F.relu(x)


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (_conv(channels, channels, kernel_size) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:  # (N, C, H, W) -> (N, C, H, W)
        out: Tensor = x + self.conv2(F.relu(self.conv1(F.relu(x))))
        return out


def _conv(inputs: int, outputs: int, size: int) -> nn.Conv2d:
    """A padded convolution with stride 1, its weights channels last, which is the faster layout."""
    conv = nn.Conv2d(inputs, outputs, size, padding="same")
    conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
    return conv
