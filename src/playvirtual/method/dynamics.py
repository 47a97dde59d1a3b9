"""The dynamics models h (forward) and b (backward): one architecture each for feature maps and for vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from playvirtual.method import kernels
from playvirtual.method.actions import ActionSpace, DiscreteActions

if kernels.AVAILABLE:
    from playvirtual.method import fused


def rescale(z: Tensor, eps: float = 1e-6) -> Tensor:
    """Min-max rescales every sample to [0, 1]; a constant sample becomes 0 instead of NaN."""
    dims = tuple(range(1, z.dim()))
    low, high = z.amin(dims, keepdim=True), z.amax(dims, keepdim=True)
    return (z - low) / (high - low).clamp_min(eps)


class ConvDynamics(nn.Module):
    """Two 3×3 convolutions on z with the action as one-hot planes, as in SPR: (z, a) -> z of the next step.

    A one-hot plane is constant, so its share of the first convolution is one map per action: it is computed for
    all |A| actions once and looked up by a product with the one-hot vectors. Everything is laid out channels last,
    which is what convolutions and BatchNorm are fastest in, on GPUs and CPUs alike.
    """

    def __init__(self, channels: int, actions: DiscreteActions) -> None:
        super().__init__()
        self.channels, self.actions = channels, actions
        self.conv1 = nn.Conv2d(channels + actions.n, channels, 3, padding=1)
        self.bn = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        for conv in (self.conv1, self.conv2):
            conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)

    def action_maps(self, height: int, width: int) -> Tensor:
        """(|A|, H·W·C): what each action adds to the first convolution's output, bias included."""
        weight = self.conv1.weight[:, self.channels :].flatten(2)  # (C, |A|, 9)
        # A plane is 1 inside the map and 0 around it: a position adds up the taps that lie inside.
        plane = torch.ones(1, 1, height, width, device=weight.device, dtype=weight.dtype)
        inside = F.unfold(plane, 3, padding=1)[0]  # (9, H·W)
        assert self.conv1.bias is not None
        maps = (weight.permute(1, 0, 2) @ inside).transpose(1, 2) + self.conv1.bias  # (|A|, H·W, C)
        return maps.flatten(1)

    def forward(self, z: Tensor, a: Tensor) -> Tensor:  # (N, C, H, W), (N,) -> (N, C, H, W)
        one_hot = self.actions.encode(a).to(z.dtype)  # (N, |A|)
        height, width = z.shape[2:]
        of_action = (one_hot @ self.action_maps(height, width)).view(-1, height, width, self.channels)
        x = F.conv2d(z, self.conv1.weight[:, : self.channels], padding=1) + of_action.permute(0, 3, 1, 2)
        x = self.bn(F.relu(x))
        return rescale(F.relu(self.conv2(x)))

    def unroll_two_batches(
        self, z: Tensor, actions: Tensor, first: int, *, frozen: bool = False
    ) -> tuple[Tensor, Tensor] | None:
        """K steps of two batches at once by fused kernels; None where they cannot be used.

        z (N, C, H, W), actions (N, K). Returns all states (first, K, C, H, W) of the first `first` samples and the last
        ones (N − first, C, H, W) of the others; each of the two has its own batch statistics. `frozen` keeps gradients
        from the parameters. The kernels want a GPU with Triton, training mode, and maps of at most 64 positions with
        16 to 128 channels.
        """
        small = z.shape[2] * z.shape[3] <= 64 and self.channels in (16, 32, 64, 128)
        if not (kernels.in_use() and z.is_cuda and small and self.training and actions.shape[1]):
            return None
        z = kernels.low_precision(z)
        assert self.conv2.bias is not None
        weights: tuple[Tensor, ...] = (
            self.action_maps(z.shape[2], z.shape[3]).float(),
            self.conv1.weight[:, : self.channels],
            self.bn.weight,
            self.bn.bias,
            self.conv2.weight,
            self.conv2.bias,
        )
        if frozen:
            weights = tuple(w.detach() for w in weights)
        ahead, last, sums = fused.rollout(z, actions, *weights, first=first)
        for batch, samples in enumerate((first, len(z) - first)):
            if samples:
                self._follow_statistics(sums[:, batch], samples * z.shape[2] * z.shape[3])
        return ahead.transpose(0, 1), last

    @torch.no_grad()
    def _follow_statistics(self, sums: Tensor, count: int) -> None:
        """Moves BatchNorm's running statistics as K single steps with these sums (K, 2, C) would have."""
        steps, momentum = len(sums), self.bn.momentum or 0.0
        mean = sums[:, 0] / count
        variance = (sums[:, 1] / count - mean.square()) * (count / (count - 1))
        share = momentum * (1.0 - momentum) ** torch.arange(steps - 1, -1, -1, device=sums.device)  # (K,)
        for running, seen in ((self.bn.running_mean, mean), (self.bn.running_var, variance)):
            if running is not None:
                running.mul_((1.0 - momentum) ** steps).add_((share[:, None] * seen).sum(0))


class DenseDynamics(nn.Module):
    """Two fully connected layers with LayerNorm and ReLU between them, as in DBC: (z, a) -> z of the next step."""

    def __init__(self, latent: int, actions: ActionSpace, hidden: int, *, rescaled: bool = False) -> None:
        super().__init__()
        self.actions, self.rescaled = actions, rescaled
        self.fc1 = nn.Linear(latent + actions.size, hidden)
        self.ln = nn.LayerNorm(hidden)
        self.fc2 = nn.Linear(hidden, latent)

    def forward(self, z: Tensor, a: Tensor) -> Tensor:  # (N, D), (N,) or (N, A) -> (N, D)
        x = torch.cat([z, self.actions.encode(a).to(z.dtype)], 1)
        z = self.fc2(F.relu(self.ln(self.fc1(x))))
        return rescale(z) if self.rescaled else z

    def unroll_two_batches(
        self, z: Tensor, actions: Tensor, first: int, *, frozen: bool = False
    ) -> tuple[Tensor, Tensor] | None:
        """K steps of two batches at once, as in `ConvDynamics`: no sample here knows of the others.

        With `frozen` parameters, or no step to take, None: that is left to whoever takes single steps.
        """
        if frozen or not actions.shape[1]:
            return None
        states = []
        for a in actions.unbind(1):
            z = self(z, a)
            states.append(z[:first])
        return torch.stack(states, 1), z[first:]
