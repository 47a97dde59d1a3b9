"""The dynamics models h (forward) and b (backward): one architecture each for feature maps and for vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from playvirtual.method.actions import ActionSpace, DiscreteActions


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
        weight = self.conv1.weight[:, self.channels :]  # (C, |A|, 3, 3)
        planes = torch.eye(self.actions.n, device=weight.device, dtype=weight.dtype)
        planes = planes[:, :, None, None].expand(-1, -1, height, width)
        return F.conv2d(planes, weight, self.conv1.bias, padding=1).permute(0, 2, 3, 1).flatten(1)

    def forward(self, z: Tensor, a: Tensor) -> Tensor:  # (N, C, H, W), (N,) -> (N, C, H, W)
        one_hot = self.actions.encode(a).to(z.dtype)  # (N, |A|)
        height, width = z.shape[2:]
        of_action = (one_hot @ self.action_maps(height, width)).view(-1, height, width, self.channels)
        x = F.conv2d(z, self.conv1.weight[:, : self.channels], padding=1) + of_action.permute(0, 3, 1, 2)
        x = self.bn(F.relu(x))
        return rescale(F.relu(self.conv2(x)))


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
