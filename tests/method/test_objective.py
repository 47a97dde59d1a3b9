"""Cycles along recorded actions are cycles like any other: the same metric, constraint and parameters that learn."""

from typing import Any

import pytest
import torch
from torch import Tensor

import playvirtual as pv
from playvirtual.agents.auxiliary import cycle_loss, virtual_trajectories
from playvirtual.method import (
    DenseDynamics,
    DiscreteActions,
    ProjectionHead,
    VirtualTrajectories,
    cosine_distance,
    cycle,
    rollout,
)

B, K, D = 4, 3, 5
SPACE = DiscreteActions(3)


class World:
    """Two models, projections, one batch."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.h, self.b = DenseDynamics(D, SPACE, 8), DenseDynamics(D, SPACE, 8)
        self.g, self.q, self.g_m = (ProjectionHead(D, 8) for _ in range(3))
        self.z, self.home = torch.randn(B, D), torch.randn(B, 1, D)
        self.actions = torch.randint(3, (B, K))

    def virtual(self, copies: int, **changes: Any) -> VirtualTrajectories:
        """The module with the settings of a run that has cycles along recorded actions."""
        return virtual_trajectories(
            pv.build("atari/pong", real_cycle=True, K=K, **changes).objective,
            forward=self.h,
            backward=self.b,
            actions=SPACE,
            copies=copies,
            projector=self.g,
            predictor=self.q,
            target_projector=self.g_m,
        )

    def recorded(self) -> tuple[Tensor, Tensor]:
        return self.actions, rollout(self.h, self.z, self.actions)

    def loss(self, **changes: Any) -> Tensor:
        """Along the recorded actions alone: nothing is drawn."""
        drawn = torch.zeros((B, 0, K), dtype=torch.int64)
        return cycle_loss(self.virtual(0, **changes), self.z, self.home, drawn, None, self.recorded())


def test_the_way_back_along_recorded_actions_ends_at_home() -> None:
    """d(q(g(z′_t)), home), by the method's own definition of a cycle."""
    world = World()
    _, z_cycle = cycle(world.h, world.b, world.z, world.actions)
    expected = cosine_distance(world.q(world.g(z_cycle[:, 0])), world.home[:, 0])
    torch.testing.assert_close(world.loss(), expected)


def test_every_step_counts_where_every_step_is_to_count() -> None:
    world = World()
    z_hat, z_cycle = cycle(world.h, world.b, world.z, world.actions)
    inner = cosine_distance(world.q(world.g(z_cycle[:, 1:])), world.g_m(z_hat[:, :-1])).sum(1)
    torch.testing.assert_close(world.loss(constraint="every"), world.loss() + inner)


@pytest.mark.parametrize("learns", [True, False])
def test_the_forward_model_learns_from_recorded_cycles_only_if_it_may(learns: bool) -> None:
    world = World()
    loss = world.loss(cycle_trains_forward=learns)
    torch.testing.assert_close(loss, world.loss())
    forward = torch.autograd.grad(loss.sum(), [*world.h.parameters()], allow_unused=True, retain_graph=True)
    assert all((gradient is not None) == learns for gradient in forward)
    backward = torch.autograd.grad(loss.sum(), [*world.b.parameters()])
    assert all(gradient.abs().sum() > 0 for gradient in backward)


def test_recorded_and_drawn_cycles_add_up() -> None:
    world = World()
    virtual = world.virtual(2)
    drawn = virtual.draw(len(world.z), world.z.device)
    home = torch.cat([torch.randn(B, 2, D), world.home], 1)
    found = cycle_loss(virtual, world.z, home, drawn, None, world.recorded())
    torch.testing.assert_close(found, virtual.loss(world.z, home[:, :2], drawn) + world.loss())
    without = cycle_loss(virtual, world.z, home[:, :2], drawn, None, world.recorded())
    torch.testing.assert_close(without, virtual.loss(world.z, home[:, :2], drawn))
