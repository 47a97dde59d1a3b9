"""The networks of the continuous agents: pixel encoder, actor, twin critic, decoder."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from playvirtual.agents.networks import output_size
from playvirtual.kernels.convolution import conv_relus
from playvirtual.kernels.linear import linear


def orthogonal(module: nn.Module) -> None:
    """Initializes one layer: linear weights orthogonal, convolutions delta-orthogonal, biases 0."""
    if isinstance(module, nn.Linear):
        nn.init.orthogonal_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        # Only the center of each filter is not 0, so a deep stack of them keeps norms (Xiao et al. 2018).
        nn.init.zeros_(module.weight)
        height, width = module.kernel_size
        center = torch.empty(module.weight.shape[:2])
        nn.init.orthogonal_(center, gain=nn.init.calculate_gain("relu"))
        with torch.no_grad():
            module.weight[:, :, height // 2, width // 2] = center
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class Convolutions(nn.Module):
    """Convolutions with ReLU; what actor and critic share."""

    def __init__(
        self,
        frame_shape: tuple[int, int, int],
        channels: Sequence[int],
        kernel_sizes: Sequence[int],
        strides: Sequence[int],
    ) -> None:
        super().__init__()
        c = frame_shape[0]
        height, width = output_size(frame_shape[1:], kernel_sizes, strides)
        self.layers = nn.ModuleList()
        for out, size, stride in zip(channels, kernel_sizes, strides, strict=True):
            self.layers.append(nn.Conv2d(c, out, size, stride))
            c = out
        self.size = c * height * width

    def forward(self, x: Tensor) -> Tensor:  # (N, C, H, W) floats -> (N, c, h, w)
        return conv_relus(x, self.layers)


class LatentLayer(nn.Module):
    """From convolutional features to the latent state: linear, LayerNorm, and tanh where asked for."""

    def __init__(self, features: int, latent: int, *, tanh: bool) -> None:
        super().__init__()
        self.tanh = tanh
        self.fc = nn.Linear(features, latent)
        self.ln = nn.LayerNorm(latent)

    def forward(self, features: Tensor) -> Tensor:  # (N, c, h, w) -> (N, latent)
        z: Tensor = self.ln(self._product(features))
        return torch.tanh(z) if self.tanh else z

    def _product(self, features: Tensor) -> Tensor:
        """The linear layer's product. Features are channels last, weights are not: the smaller one is permuted."""
        latent = self.fc.out_features
        if len(features) < latent:
            out: Tensor = self.fc(features.flatten(1))
            return out
        weight = self.fc.weight.unflatten(1, features.shape[1:]).permute(0, 2, 3, 1).flatten(1)
        weight = F.pad(weight, (0, 0, 0, -latent % 8))  # GPUs are slow at products of odd sizes
        return F.linear(features.permute(0, 2, 3, 1).flatten(1), weight)[:, :latent] + self.fc.bias


class SacEncoder(nn.Module):
    """f: convolutions and the critic's latent layer."""

    def __init__(self, convs: Convolutions, latent: int, *, tanh: bool) -> None:
        super().__init__()
        self.convs = convs
        self.latent = LatentLayer(convs.size, latent, tanh=tanh)

    def forward(self, x: Tensor) -> Tensor:  # (N, C, H, W) -> (N, latent)
        z: Tensor = self.latent(self.convs(x))
        return z


class Decoder(nn.Module):
    """From the latent state back to the image: the encoder's layers mirrored, each transposed, ReLU between them."""

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        channels: Sequence[int],
        kernel_sizes: Sequence[int],
        strides: Sequence[int],
        latent: int,
    ) -> None:
        super().__init__()
        depths = (image_shape[0], *channels)
        # Height and width of the encoder's input and of what each of its convolutions makes of it.
        sizes = [output_size(image_shape[1:], kernel_sizes[:n], strides[:n]) for n in range(len(channels) + 1)]
        self.map_shape = (depths[-1], *sizes[-1])
        self.fc = nn.Linear(latent, math.prod(self.map_shape))
        self.layers = nn.ModuleList()
        for n in reversed(range(len(channels))):
            # Rows and columns that the stride left over at the edge of the encoder's input come back as padding.
            down, right = ((size - kernel_sizes[n]) % strides[n] for size in sizes[n])
            inputs, outputs, size, stride = depths[n + 1], depths[n], kernel_sizes[n], strides[n]
            self.layers.append(nn.ConvTranspose2d(inputs, outputs, size, stride, output_padding=(down, right)))
        self.apply(orthogonal)

    def forward(self, z: Tensor) -> Tensor:  # (N, latent) -> (N, C, H, W)
        x = self.fc(z).unflatten(1, self.map_shape)
        for layer in self.layers:
            x = layer(F.relu(x))
        image: Tensor = x
        return image


class Temperature(nn.Module):
    """α of the entropy bonus, learned as log α."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)))


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two hidden layers with ReLU."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


def outputs(layers: nn.Sequential, x: Tensor) -> Tensor:
    """layers(x), the last one without autocast, whose few digits would round temporal differences and 1 − a² away."""
    *hidden, last = layers
    assert isinstance(last, nn.Linear)
    for layer in hidden:
        x = linear(x, layer) if isinstance(layer, nn.Linear) else layer(x)
    with torch.autocast(x.device.type, enabled=False):
        y: Tensor = last(x.to(last.weight.dtype))
    return y


class Actor(nn.Module):
    """The squashed Gaussian policy; it has its own latent layer on the critic's convolutions."""

    def __init__(
        self,
        features: int,
        latent: int,
        actions: int,
        hidden: int,
        log_std: tuple[float, float],
        *,
        tanh: bool,
    ) -> None:
        super().__init__()
        self.log_std_min, self.log_std_max = log_std
        self.latent = LatentLayer(features, latent, tanh=tanh)
        self.mlp = mlp(latent, hidden, 2 * actions)
        self.apply(orthogonal)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(N, c, h, w) -> mean before squashing and log standard deviation, (N, A) each."""
        mean, raw = outputs(self.mlp, self.latent(features)).chunk(2, 1)
        share = 0.5 * (torch.tanh(raw) + 1.0)  # in [0, 1]
        return mean, self.log_std_min + share * (self.log_std_max - self.log_std_min)


class Critic(nn.Module):
    """The encoder and two Q-functions on its latent state."""

    def __init__(self, encoder: SacEncoder, latent: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.q1, self.q2 = mlp(latent + actions, hidden, 1), mlp(latent + actions, hidden, 1)
        self.apply(orthogonal)

    def q(self, z: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """(N, latent), (N, A) -> Q₁ and Q₂, (N,) each."""
        x = torch.cat([z, actions], 1)
        return outputs(self.q1, x)[:, 0], outputs(self.q2, x)[:, 0]

    def forward(self, images: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """(N, C, H, W), (N, A) -> Q₁ and Q₂, (N,) each."""
        return self.q(self.encoder(images), actions)
