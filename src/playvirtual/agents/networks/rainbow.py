"""The networks of the discrete agent: encoder, noisy layers, dueling distributional head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from playvirtual import kernels
from playvirtual.agents.networks import output_size
from playvirtual.kernels.convolution import conv_relu
from playvirtual.kernels.linear import UNIT
from playvirtual.method import Augmentation, rescale
from playvirtual.replay.augmentation import RandomShift

SetNoise = Callable[[list[Tensor], Tensor], None]  # `set_noise`, compiled or not

FEW_ROWS = 16  # for fewer it costs more to concatenate weights than to use them one by one


class PixelEncoder(nn.Module):
    """Feature maps of images, then (if `latent` > 0) one linear layer; outputs are rescaled to [0, 1] if asked for.

    `background` is subtracted from pixels: where most of an image has one bright shade, states would look alike else. A
    subclass makes its `convs`, the first of which sees the images, says what they give by `_finish`, and defines
    `feature_maps`.
    """

    convs: nn.ModuleList
    feature_maps: Callable[[Tensor], Tensor]  # (N, C, H, W) floats -> (N, c, h, w)

    def _finish(self, map_shape: tuple[int, int, int], latent: int, *, rescaled: bool, background: float) -> None:
        """The last layer, for feature maps of that shape (c, h, w)."""
        self.rescaled, self.background, self.map_shape = rescaled, background, map_shape
        self.fc = nn.Linear(math.prod(map_shape), latent) if latent else None
        self.size = latent or math.prod(map_shape)

    def forward(self, x: Tensor) -> Tensor:  # (N, C, H, W) floats -> (N, c, h, w) or (N, latent)
        return self._latent(self.feature_maps(x - self.background if self.background else x))

    def encode_views(
        self, augment: Augmentation, images: Tensor, randoms: Any, source: Tensor | None = None
    ) -> Tensor:  # (N, C, H, W) uint8 -> (V, c, h, w) or (V, latent)
        """f of random views of images."""
        z: Tensor = self(augment(images, randoms, source))
        return z

    def _latent(self, maps: Tensor) -> Tensor:
        """The last convolution's outputs -> z."""
        z = maps if self.fc is None else self.fc(maps.flatten(1))
        return rescale(z) if self.rescaled else z


class RainbowEncoder(PixelEncoder):
    """Convolutions with ReLU."""

    def __init__(
        self,
        frame_shape: tuple[int, int, int],
        channels: Sequence[int],
        kernel_sizes: Sequence[int],
        strides: Sequence[int],
        latent: int,
        *,
        rescaled: bool = True,
        background: float = 0.0,
    ) -> None:
        super().__init__()
        c = frame_shape[0]
        height, width = output_size(frame_shape[1:], kernel_sizes, strides)
        self.convs = nn.ModuleList()
        for out, size, stride in zip(channels, kernel_sizes, strides, strict=True):
            conv = nn.Conv2d(c, out, size, stride)
            conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)  # the faster layout
            self.convs.append(conv)
            c = out
        self._finish((c, height, width), latent, rescaled=rescaled, background=background)

    def feature_maps(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv_relu(x, conv)
        return x

    def encode_views(self, augment: Augmentation, images: Tensor, randoms: Any, source: Tensor | None = None) -> Tensor:
        """f of random views of images; a kernel may shift and convolve at once, so that no view lies in memory."""
        maps = None
        if isinstance(augment, RandomShift) and not self.background:
            maps = augment.convolved(images, randoms, self.convs, source)
        return super().encode_views(augment, images, randoms, source) if maps is None else self._latent(maps)


class NoisyLinear(nn.Module):
    """A linear layer whose weights are μ + σ ⊙ ε with factorized Gaussian noise ε, redrawn by `resample`."""

    def __init__(self, inputs: int, outputs: int, sigma: float) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight_mu = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias_mu = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma / math.sqrt(inputs)))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma / math.sqrt(outputs)))
        self.register_buffer("noise_in", torch.zeros(inputs))
        self.register_buffer("noise_out", torch.zeros(outputs))
        self.noise_in: Tensor
        self.noise_out: Tensor

    def resample(self, generator: torch.Generator | None = None) -> None:
        """Draws new noise for this layer."""
        resample([self], generator)

    def weights(self, noisy: bool = True) -> tuple[Tensor, Tensor]:
        """What inputs are multiplied with, (outputs, inputs), and what is added."""
        if not noisy:
            return self.weight_mu, self.bias_mu
        noise = self.noise_out[:, None] * self.noise_in
        return self.weight_mu + self.weight_sigma * noise, self.bias_mu + self.bias_sigma * self.noise_out

    def forward(self, x: Tensor, noisy: bool = True) -> Tensor:  # (N, inputs) -> (N, outputs)
        if not noisy or len(x) >= FEW_ROWS:
            return F.linear(x, *self.weights(noisy))
        # (σ ⊙ ε_out ε_inᵀ) x = ε_out ⊙ (σ (ε_in ⊙ x)): for an action or two the noisy weights are not worth forming.
        mean = F.linear(x, self.weight_mu, self.bias_mu)
        return mean + self.noise_out * (F.linear(x * self.noise_in, self.weight_sigma) + self.bias_sigma)


class Stream(nn.Module):
    """The layers of one side of the dueling head."""

    def __init__(self, inputs: int, hidden: int, outputs: int, sigma: float) -> None:
        super().__init__()
        self.hidden = NoisyLinear(inputs, hidden, sigma)
        self.out = NoisyLinear(hidden, outputs, sigma)


class DuelingHead(nn.Module):
    """Logits of the return distribution of every action; its first layers double as the projection g.

    The gradient that reaches the encoder is multiplied by `gradient_scale`.
    """

    def __init__(
        self, inputs: int, actions: int, hidden: int, atoms: int, sigma: float, *, gradient_scale: float = 2**-0.5
    ) -> None:
        super().__init__()
        self.actions, self.atoms, self.gradient_scale = actions, atoms, gradient_scale
        self.projection_size = 2 * hidden
        self.set_noise: SetNoise = set_noise  # an agent may replace it by its compiled form
        self.advantage = Stream(inputs, hidden, actions * atoms, sigma)
        self.value = Stream(inputs, hidden, atoms, sigma)
        # One bias per atom for all advantages. It cancels in the dueling difference and is kept so that the
        # parameter count is that of the released code.
        self.atom_bias = nn.Parameter(torch.zeros(atoms))

    def forward(self, z: Tensor, noisy: bool = True) -> Tensor:  # (N, …) -> (N, |A|, atoms)
        hidden = F.relu(self._hidden(scale_gradient(z, self.gradient_scale), noisy))
        # Rounded to autocast's few digits, logits would make actions look alike that differ by little.
        with torch.autocast(z.device.type, enabled=False):
            value, advantage = self._outputs(hidden.to(self.atom_bias.dtype), noisy)
            value = value.view(-1, 1, self.atoms)
            advantage = advantage.view(-1, self.actions, self.atoms) + self.atom_bias
            logits: Tensor = value + advantage - advantage.mean(1, keepdim=True)
        return logits

    def project(self, z: Tensor) -> Tensor:
        """g(z): both streams' first layers side by side, without noise and without ReLU. (N, …) -> (N, 2·hidden)."""
        return self._hidden(z, noisy=False)

    def _hidden(self, z: Tensor, noisy: bool) -> Tensor:
        """Value's and advantage's first layers, for a batch by one product. (N, …) -> (N, 2·hidden)."""
        layers = self.value.hidden, self.advantage.hidden
        if len(z) < FEW_ROWS:
            return torch.cat([layer(z.flatten(1), noisy) for layer in layers], 1)
        weight, bias = (torch.cat(both) for both in zip(*(layer.weights(noisy) for layer in layers), strict=True))
        if z.dim() == 4 and kernels.saves_launches(z):
            # Maps lie channels last in memory: the weights, which are copied anyway, follow their order.
            z, weight = (x.permute(0, 2, 3, 1) for x in (z, weight.unflatten(1, z.shape[1:])))
        return F.linear(z.flatten(1), weight.flatten(1), bias)

    def _outputs(self, hidden: Tensor, noisy: bool) -> tuple[Tensor, Tensor]:
        """Value's and advantage's second layers, (N, 2·hidden) -> (N, atoms), (N, |A|·atoms)."""
        if len(hidden) < FEW_ROWS or not kernels.saves_launches(hidden):
            value, advantage = hidden.chunk(2, 1)
            return self.value.out(value, noisy), self.advantage.out(advantage, noisy)
        (value, value_bias), (advantage, advantage_bias) = (
            layer.weights(noisy) for layer in (self.value.out, self.advantage.out)
        )
        # One product: each layer has zeros for the other one's inputs. Rows of zeros fill up to a size that is fast.
        outputs = len(value) + len(advantage)
        more = -outputs % UNIT
        weight = torch.cat([F.pad(value, (0, advantage.shape[1])), F.pad(advantage, (value.shape[1], 0, 0, more))])
        out = F.linear(hidden, weight, torch.cat([value_bias, F.pad(advantage_bias, (0, more))]))
        return out[:, : self.atoms], out[:, self.atoms : outputs]

    def resample(self, generator: torch.Generator | None = None) -> None:
        """Draws new noise in all four layers."""
        resample([module for module in self.modules() if isinstance(module, NoisyLinear)], generator, self.set_noise)


class QHead(nn.Module):
    """One hidden layer, then the logits of every action's return, or with one atom its value: dueling or not.

    With `sigma` > 0 all layers are noisy, else none is. The hidden layer doubles as the projection g.
    """

    def __init__(self, inputs: int, actions: int, hidden: int, atoms: int, *, sigma: float, dueling: bool) -> None:
        super().__init__()
        self.actions, self.atoms, self.projection_size = actions, atoms, hidden
        self.set_noise: SetNoise = set_noise  # an agent may replace it by its compiled form

        def layer(inputs: int, outputs: int) -> nn.Module:
            return NoisyLinear(inputs, outputs, sigma) if sigma else nn.Linear(inputs, outputs)

        self.hidden, self.advantage = layer(inputs, hidden), layer(hidden, actions * atoms)
        self.value = layer(hidden, atoms) if dueling else None
        self.apply(xavier_uniform)

    def forward(self, z: Tensor, noisy: bool = True) -> Tensor:  # (N, …) -> (N, |A|, atoms)
        hidden = F.relu(_apply(self.hidden, z.flatten(1), noisy))
        # Rounded to autocast's few digits, logits would make actions look alike that differ by little.
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.to(torch.get_default_dtype())
            advantage = _apply(self.advantage, hidden, noisy).view(-1, self.actions, self.atoms)
            if self.value is None:
                return advantage
            value = _apply(self.value, hidden, noisy).view(-1, 1, self.atoms)
            return advantage - advantage.mean(1, keepdim=True) + value

    def project(self, z: Tensor) -> Tensor:
        """g(z): the hidden layer without noise and without ReLU. (N, …) -> (N, hidden)."""
        return _apply(self.hidden, z.flatten(1), noisy=False)

    def resample(self, generator: torch.Generator | None = None) -> None:
        """Draws new noise in all layers, if they are noisy."""
        if noisy := [module for module in self.modules() if isinstance(module, NoisyLinear)]:
            resample(noisy, generator, self.set_noise)


def _apply(layer: nn.Module, x: Tensor, noisy: bool) -> Tensor:
    """A layer's output, (N, inputs) -> (N, outputs); a plain layer has no noise to leave out."""
    out: Tensor = layer(x, noisy) if isinstance(layer, NoisyLinear) else layer(x)
    return out


def xavier_uniform(module: nn.Module) -> None:
    """Initializes one linear or convolutional layer by Glorot and Bengio's uniform rule, biases 0; no other one."""
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def set_noise(noises: list[Tensor], drawn: Tensor) -> None:
    """Writes f(x) = sign(x)·√|x| of normal numbers (Σ sizes,) into the noises of layers, one after the other."""
    sizes = [len(noise) for noise in noises]
    torch._foreach_copy_(noises, (drawn.sign() * drawn.abs().sqrt()).split(sizes))


def resample(
    layers: Sequence[NoisyLinear], generator: torch.Generator | None = None, write: SetNoise = set_noise
) -> None:
    """Draws new noise for all these layers in one go: ε_w = f(ε_out) ⊗ f(ε_in), ε_b = f(ε_out).

    `write` is `set_noise`, compiled or not.
    """
    noises = [noise for layer in layers for noise in (layer.noise_in, layer.noise_out)]
    count = sum(len(noise) for noise in noises)
    write(noises, torch.randn(count, generator=generator, device=noises[0].device, dtype=noises[0].dtype))


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """The value of x with its gradient multiplied by `factor`."""
    if not torch.is_grad_enabled():
        return x
    still = x.detach()
    return still + factor * (x - still)
