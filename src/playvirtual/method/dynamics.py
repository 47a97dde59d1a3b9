"""The dynamics models h (forward) and b (backward): one architecture each for feature maps and for vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from playvirtual import kernels
from playvirtual.kernels import rollout as rollout_kernels
from playvirtual.kernels.linear import linear
from playvirtual.kernels.rollout import rescale
from playvirtual.method.actions import ActionSpace, DiscreteActions

Step = Callable[[Tensor, Tensor], Tensor]  # (N, …), (N, …a) -> (N, …)


class RolloutBatch(NamedTuple):
    """N trajectories that start in z and follow `actions`; their BatchNorm statistics are their own."""

    z: Tensor  # (N, …), or (N/M, …): then each state is the start of M consecutive trajectories
    actions: Tensor  # (N, K, …a)
    last_only: bool = False  # the result is ẑ_{t+K} alone, (N, 1, …), instead of all K states

    def starts(self) -> Tensor:
        """The state in which each trajectory starts, (N, …)."""
        M = len(self.actions) // max(len(self.z), 1)
        return self.z if M == 1 else self.z.repeat_interleave(M, 0)


class Dynamics(nn.Module):
    """A latent dynamics model: one step `forward(z, a)`, and rollouts of many steps.

    A subclass defines `forward`. One that can roll out faster than step by step overrides `rollouts`.
    """

    def rollout(self, z: Tensor, actions: Tensor) -> Tensor:  # (N, …), (N, K, …a) -> (N, K, …)
        """Eq. 1: ẑ_{t+k+1} = h(ẑ_{t+k}, a_{t+k}) from ẑ_t = z_t."""
        return self.rollouts(RolloutBatch(z, actions))[0]

    def rollouts(self, *batches: RolloutBatch, frozen: bool = False) -> list[Tensor]:
        """The states (N, K, …) of every batch, or its last ones (N, 1, …); the batches do not influence each other.

        All states of a step lie together in memory. With `frozen`, gradients pass through to z and do not reach the
        model's parameters.
        """
        step = self._frozen_step() if frozen else self
        return [_step_by_step(step, batch) for batch in batches]

    def _frozen_step(self) -> Step:
        detached = {name: p.detach() for name, p in self.named_parameters()}

        def step(z: Tensor, a: Tensor) -> Tensor:
            out: Tensor = functional_call(self, detached, (z, a))
            return out

        return step


def _step_by_step(step: Step, batch: RolloutBatch) -> Tensor:
    z, states = batch.starts(), []
    for a in batch.actions.unbind(1):  # (N, K, …a) -> K × (N, …a)
        z = step(z, a)
        if not batch.last_only:
            states.append(z)
    return z[:, None] if batch.last_only else torch.stack(states).transpose(0, 1)


def _joined(batches: Sequence[RolloutBatch]) -> tuple[Tensor, Tensor]:
    """The starts (N, …) and the actions (N, K, …a) of all batches together."""
    if len(batches) == 1:
        return batches[0].starts(), batches[0].actions
    return torch.cat([batch.starts() for batch in batches]), torch.cat([batch.actions for batch in batches])


class StepDynamics(Dynamics):
    """Any function or module (z, a) -> z of the next step as a `Dynamics`."""

    def __init__(self, model: Step) -> None:
        super().__init__()
        self.model = model  # a module becomes a part of this one, so that its parameters are known

    def forward(self, z: Tensor, a: Tensor) -> Tensor:
        next_z: Any = self.model(z, a)
        if not isinstance(next_z, Tensor) or next_z.shape != z.shape:
            found = f"shape {tuple(next_z.shape)}" if isinstance(next_z, Tensor) else f"a {type(next_z).__name__}"
            raise ValueError(
                f"dynamics: a model (z, a) -> z returned {found} for z of shape {tuple(z.shape)}; allowed: a tensor of "
                "that shape"
            )
        return next_z


def as_dynamics(model: Step) -> Dynamics:
    """The model itself if it is a `Dynamics`, else the model step by step."""
    return model if isinstance(model, Dynamics) else StepDynamics(model)


class ConvDynamics(Dynamics):
    """Two 3×3 convolutions on z with the action as one-hot planes, as in SPR: (z, a) -> z of the next step.

    A one-hot plane is constant, so its share of the first convolution is one map per action: it is computed for
    all |A| actions once and looked up by a product with the one-hot vectors. Everything is laid out channels last,
    which is what convolutions and BatchNorm are fastest in, on GPUs and CPUs alike. `batch_norm` says whether there is
    one after the first convolution.
    """

    def __init__(self, channels: int, actions: DiscreteActions, *, batch_norm: bool = True) -> None:
        super().__init__()
        self.channels, self.actions = channels, actions
        self.conv1 = nn.Conv2d(channels + actions.n, channels, 3, padding=1)
        self.bn = nn.BatchNorm2d(channels) if batch_norm else None
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        for conv in (self.conv1, self.conv2):
            conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)

    def _filters(self) -> tuple[Tensor, Tensor]:
        """The first convolution's filters for z (C, C, 3, 3) and for the action's planes (C, |A|, 9)."""
        # Channels last before they are divided, so that their gradients add up in the parameter's own order.
        weight = self.conv1.weight.permute(0, 2, 3, 1)  # (C, 3, 3, C + |A|)
        w1, planes = weight[..., : self.channels], weight[..., self.channels :]
        return w1.permute(0, 3, 1, 2), planes.flatten(1, 2).transpose(1, 2)

    def action_maps(self, height: int, width: int) -> Tensor:
        """(|A|, H·W·C): what each action adds to the first convolution's output, bias included."""
        _, weight = self._filters()  # (C, |A|, 9)
        # A plane is 1 inside the map and 0 around it: a position adds up the taps that lie inside.
        plane = torch.ones(1, 1, height, width, device=weight.device, dtype=weight.dtype)
        inside = F.unfold(plane, 3, padding=1)[0]  # (9, H·W)
        if kernels.saves_launches(weight):  # compiled to one kernel; a product would need others that cast and copy
            maps = (weight[..., None] * inside).sum(2).permute(1, 2, 0)
        else:
            maps = (weight.permute(1, 0, 2) @ inside).transpose(1, 2)  # (|A|, H·W, C)
        assert self.conv1.bias is not None
        return (maps + self.conv1.bias).flatten(1)

    def forward(self, z: Tensor, a: Tensor) -> Tensor:  # (N, C, H, W), (N,) -> (N, C, H, W)
        one_hot = self.actions.encode(a).to(z.dtype)  # (N, |A|)
        height, width = z.shape[2:]
        action_map = (one_hot @ self.action_maps(height, width)).view(-1, height, width, self.channels)
        w1, _ = self._filters()
        normalize = self.bn if self.bn is not None else nn.Identity()
        return rollout_kernels.step(
            z, action_map.permute(0, 3, 1, 2), w1, normalize, self.conv2.weight, self.conv2.bias
        )

    def rollouts(self, *batches: RolloutBatch, frozen: bool = False) -> list[Tensor]:
        """As `Dynamics.rollouts`, by the fused kernels where they can be used, else step by step.

        One launch per step serves a batch that keeps all states and one that keeps the last ones alone.
        """
        if not all(self._is_fusible(batch) for batch in batches):
            return super().rollouts(*batches, frozen=frozen)
        if [batch.last_only for batch in batches] == [False, True]:
            return self._fused(*batches, frozen=frozen)
        return [found for batch in batches for found in self._fused(batch, frozen=frozen)]

    def _is_fusible(self, batch: RolloutBatch) -> bool:
        """The kernels need a GPU with Triton, training mode, BatchNorm, maps of at most 64 positions and 16 to 128
        channels."""
        small = batch.z.shape[2] * batch.z.shape[3] <= 64 and self.channels in (16, 32, 64, 128)
        return (
            self.bn is not None
            and kernels.in_use()
            and batch.z.is_cuda
            and small
            and self.training
            and batch.actions.shape[1] > 0
        )

    def _fused(self, *batches: RolloutBatch, frozen: bool) -> list[Tensor]:
        """One batch, or two of which the first keeps all states and the second its last ones."""
        z, actions = _joined(batches)
        z = kernels.low_precision(z)
        height, width = z.shape[2:]
        assert self.conv2.bias is not None
        assert self.bn is not None
        weights: tuple[Tensor, ...] = (
            self.action_maps(height, width).float(),
            self._filters()[0],
            self.bn.weight,
            self.bn.bias,
            self.conv2.weight,
            self.conv2.bias,
        )
        if frozen:
            weights = tuple(w.detach() for w in weights)
        kept = sum(len(batch.actions) for batch in batches if not batch.last_only)  # trajectories that keep all states
        states, last, sums = rollout_kernels.fused(z, actions, *weights, num_kept=kept)
        for group, samples in enumerate((kept, len(z) - kept)):
            if samples:
                self.update_running_statistics(sums[:, group], samples * height * width)
        return [last[:, None] if batch.last_only else states.transpose(0, 1) for batch in batches]

    @torch.no_grad()
    def update_running_statistics(self, sums: Tensor, count: int) -> None:
        """Moves BatchNorm's running statistics as K single steps with these sums of x and x² (K, 2, C) would have."""
        assert self.bn is not None
        steps, momentum = len(sums), self.bn.momentum or 0.0
        mean = sums[:, 0] / count
        variance = (sums[:, 1] / count - mean.square()) * (count / (count - 1))
        share = momentum * (1.0 - momentum) ** torch.arange(steps - 1, -1, -1, device=sums.device)  # (K,)
        for running, seen in ((self.bn.running_mean, mean), (self.bn.running_var, variance)):
            if running is not None:
                running.mul_((1.0 - momentum) ** steps).add_((share[:, None] * seen).sum(0))


class DenseDynamics(Dynamics):
    """Two fully connected layers with LayerNorm and ReLU between them, as in DBC: (z, a) -> z of the next step."""

    def __init__(self, latent: int, actions: ActionSpace, hidden: int, *, rescaled: bool = False) -> None:
        super().__init__()
        self.actions, self.rescaled = actions, rescaled
        self.fc1 = nn.Linear(latent + actions.size, hidden)
        self.ln = nn.LayerNorm(hidden)
        self.fc2 = nn.Linear(hidden, latent)

    def forward(self, z: Tensor, a: Tensor) -> Tensor:  # (N, D), (N,) or (N, A) -> (N, D)
        x = torch.cat([z, self.actions.encode(a).to(z.dtype)], 1)
        z = linear(F.relu(self.ln(linear(x, self.fc1))), self.fc2)
        return rescale(z) if self.rescaled else z

    def rollouts(self, *batches: RolloutBatch, frozen: bool = False) -> list[Tensor]:
        """As `Dynamics.rollouts`, with all batches in one pass, since LayerNorm keeps samples independent.

        A frozen model, and batches without a step or with different numbers of steps, are rolled out one by one.
        """
        steps = {batch.actions.shape[1] for batch in batches}
        if frozen or len(steps) > 1 or 0 in steps:
            return super().rollouts(*batches, frozen=frozen)
        sizes = [len(batch.actions) for batch in batches]
        z, actions = _joined(batches)
        steps_of_parts = []
        for a in actions.unbind(1):
            z = self(z, a)
            steps_of_parts.append(z.split(sizes))
        found = []
        for batch, states in zip(batches, zip(*steps_of_parts, strict=True), strict=True):
            found.append(states[-1][:, None] if batch.last_only else torch.stack(states).transpose(0, 1))
        return found
