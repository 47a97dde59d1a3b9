"""Samplers of virtual actions: their laws, what they see, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from playvirtual.method import (
    ActionSpace,
    BoxActions,
    DenseDynamics,
    DiscreteActions,
    Perturbed,
    SamplerInput,
    Uniform,
    VirtualTrajectories,
)
from tests.independence import look_independent

DISCRETE, BOX = DiscreteActions(4), BoxActions((-1.0, 0.0), (1.0, 5.0))
SPACES = pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["discrete", "box"])
D = 3


def stay(z: Tensor, a: Tensor) -> Tensor:
    return z


def trajectories(space: ActionSpace, K: int, M: int, sampler: Any = None, **changes: Any) -> VirtualTrajectories:
    return VirtualTrajectories(
        **{"forward": stay, "backward": stay, "actions": space, "K": K, "M": M, "sampler": sampler, **changes}
    )


def draw(space: ActionSpace, sampler: Any, B: int, M: int, K: int, seed: int = 0, **given: Any) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return trajectories(space, K, M, sampler).draw(B, torch.device("cpu"), generator, **given)


@SPACES
@settings(max_examples=25)
@given(B=st.integers(1, 4), M=st.integers(0, 3), K=st.integers(0, 4), seed=st.integers(0, 1000))
def test_uniform_actions_lie_in_the_space_and_are_decided_by_the_generator(
    space: ActionSpace, B: int, M: int, K: int, seed: int
) -> None:
    drawn = draw(space, Uniform(), B, M, K, seed)
    size = () if isinstance(space, DiscreteActions) else (space.size,)
    assert drawn.shape == (B, M, K, *size)
    assert torch.equal(drawn, draw(space, Uniform(), B, M, K, seed))
    if isinstance(space, DiscreteActions):
        assert ((drawn >= 0) & (drawn < space.n)).all()
    else:
        assert ((drawn >= torch.tensor(space.low)) & (drawn <= torch.tensor(space.high))).all()


@SPACES
def test_uniform_actions_fill_the_space_evenly(space: ActionSpace) -> None:
    drawn = draw(space, Uniform(), 100, 10, 10)
    if isinstance(space, DiscreteActions):
        shares = torch.bincount(drawn.flatten(), minlength=4) / drawn.numel()
        assert shares.tolist() == pytest.approx([0.25] * 4, abs=0.02)
    else:
        flat = drawn.flatten(0, 2)
        assert flat.mean(0).tolist() == pytest.approx([0.0, 2.5], abs=0.1)
        assert flat.amin(0).tolist() == pytest.approx([-1.0, 0.0], abs=0.01)
        assert flat.amax(0).tolist() == pytest.approx([1.0, 5.0], abs=0.01)


@SPACES
@pytest.mark.parametrize("sampler", [Uniform(), Perturbed(0.9)], ids=["uniform", "perturbed"])
def test_every_sample_and_every_trajectory_has_actions_of_its_own(space: ActionSpace, sampler: Any) -> None:
    """Even where all samples have the same recorded actions."""
    recorded = space.uniform((1, 12), torch.Generator().manual_seed(1)).repeat(3, 1, *([1] * (space is BOX)))
    drawn = draw(space, sampler, 3, 4, 12, recorded=recorded).flatten(0, 1)  # (B·M, K, …)
    assert len(torch.unique(drawn, dim=0)) == 12


@SPACES
@pytest.mark.parametrize("sampler", [Uniform(), Perturbed(0.3)], ids=["uniform", "perturbed"])
def test_actions_are_independent_over_samples_trajectories_and_steps(space: ActionSpace, sampler: Any) -> None:
    recorded = (
        torch.ones(400, 3, dtype=torch.int64) if space is DISCRETE else torch.tensor([0.0, 2.5]).expand(400, 3, 2)
    )
    drawn = draw(space, sampler, 400, 4, 3, recorded=recorded)  # (B, M, K, …)
    kinds = [drawn == 0, drawn == 1] if space is DISCRETE else [drawn]  # a draw, and whether one was replaced
    for values in kinds:
        assert look_independent(values.flatten(1).T)


@SPACES
@pytest.mark.parametrize("sampler", [Uniform(), Perturbed(0.3)], ids=["uniform", "perturbed"])
def test_the_generator_alone_decides(space: ActionSpace, sampler: Any) -> None:
    recorded = space.uniform((3, 5), torch.Generator().manual_seed(1))
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(draw(space, sampler, 3, 4, 5, seed=7, recorded=recorded))
    assert torch.equal(*found)
    assert not torch.equal(found[0], draw(space, sampler, 3, 4, 5, seed=8, recorded=recorded))


@SPACES
def test_perturbed_actions_without_noise_are_the_recorded_ones(space: ActionSpace) -> None:
    recorded = space.uniform((2, 5), torch.Generator().manual_seed(1))
    drawn = draw(space, Perturbed(0.0), 2, 3, 5, recorded=recorded)
    assert torch.equal(drawn, recorded[:, None].expand_as(drawn))


def test_perturbed_discrete_actions_change_as_often_as_sigma_says() -> None:
    """A replaced action is a uniform draw, one in four of which is the recorded action again."""
    recorded = torch.zeros(50, 20, dtype=torch.int64)
    drawn = draw(DISCRETE, Perturbed(0.4), 50, 10, 20, recorded=recorded)
    shares = torch.bincount(drawn.flatten(), minlength=4) / drawn.numel()
    assert shares.tolist() == pytest.approx([0.7, 0.1, 0.1, 0.1], abs=0.025)  # five deviations of 10,000 draws


def test_perturbed_vectors_have_gaussian_noise_within_the_bounds() -> None:
    recorded = torch.tensor([0.0, 5.0]).expand(50, 20, 2)
    drawn = draw(BOX, Perturbed(0.1), 50, 10, 20, recorded=recorded)
    assert float(drawn[..., 0].std()) == pytest.approx(0.1, abs=0.01)
    assert float(drawn[..., 1].max()) == 5.0  # clipped at the bound
    assert float((drawn[..., 1] == 5.0).double().mean()) == pytest.approx(0.5, abs=0.03)


def test_perturbed_actions_need_recorded_ones_of_the_right_shape() -> None:
    with pytest.raises(ValueError, match="recorded: None is not allowed with perturbed actions"):
        draw(DISCRETE, Perturbed(0.1), 2, 3, 5)
    with pytest.raises(ValueError, match=r"recorded: \(2, 4\) is not allowed; allowed: \(2, 5, …\)"):
        draw(DISCRETE, Perturbed(0.1), 2, 3, 5, recorded=torch.zeros(2, 4, dtype=torch.int64))


@pytest.mark.parametrize("sigma", [-0.1, float("nan"), float("inf"), "much", None])
def test_a_scale_of_noise_is_a_finite_number_from_0_on(sigma: Any) -> None:
    with pytest.raises(ValueError, match=r"sigma: .* allowed: finite numbers from 0 on"):
        Perturbed(sigma)


class Returns:
    """A sampler that gives actions of a fixed shape, right or wrong."""

    sees_state = False

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __call__(self, seen: SamplerInput) -> Tensor:
        return torch.zeros(self.shape, dtype=torch.int64)


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 3), (6, 5), (1, 3, 5), (2, 3, 1)])
def test_actions_of_a_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"sampler: it gave actions of shape .*; allowed: \(2, 3, 5, …\)"):
        draw(DISCRETE, Returns(*shape), 2, 3, 5)
    assert draw(DISCRETE, Returns(2, 3, 5), 2, 3, 5).shape == (2, 3, 5)


def test_discrete_actions_that_are_no_whole_numbers_are_refused() -> None:
    class Fractions(Returns):
        def __call__(self, seen: SamplerInput) -> Tensor:
            return torch.full(self.shape, 0.5)

    with pytest.raises(
        ValueError, match=r"^sampler: it gave actions of the type float32; allowed: int64, as of discrete"
    ):
        draw(DISCRETE, Fractions(2, 3, 5), 2, 3, 5)


def test_a_function_that_does_not_say_whether_it_sees_the_state_is_refused() -> None:
    def zeros(seen: SamplerInput) -> Tensor:
        return torch.zeros(seen.batch_size, seen.M, seen.K, dtype=torch.int64)

    sampler: Any = zeros
    with pytest.raises(TypeError, match=r"^sampler: <function .*zeros.*> is not allowed; allowed: .* `sees_state`"):
        draw(DISCRETE, sampler, 2, 3, 5)


class PolicyGuided:
    """Rolls the policy out by the forward model; remembers what it saw."""

    sees_state = True

    def __init__(self) -> None:
        self.seen: list[SamplerInput] = []
        self.gradients: list[bool] = []

    def __call__(self, seen: SamplerInput) -> Tensor:
        assert seen.z is not None
        assert seen.policy is not None
        self.seen.append(seen)
        z, actions = seen.z.repeat_interleave(seen.M, 0), []
        for _ in range(seen.K):
            a = seen.policy(z)
            z = seen.forward(z, a)
            self.gradients.append(z.requires_grad)
            actions.append(a)
        return torch.stack(actions, 1).unflatten(0, (seen.batch_size, seen.M))


def test_a_sampler_that_sees_the_state_gets_z_without_gradient_policy_and_forward_model() -> None:
    torch.manual_seed(0)
    h, b, sampler = DenseDynamics(D, DISCRETE, 8), DenseDynamics(D, DISCRETE, 8), PolicyGuided()
    aux = trajectories(DISCRETE, 4, 2, sampler, forward=h, backward=b)
    z = torch.randn(5, D, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    loss = aux(z, torch.randn(5, D), generator=generator, policy=lambda z: z.argmax(-1))
    (seen,) = sampler.seen
    assert (seen.batch_size, seen.M, seen.K, seen.action_space) == (5, 2, 4, DISCRETE)
    assert seen.z is not None
    assert torch.equal(seen.z, z)
    assert not seen.z.requires_grad
    assert seen.forward is h
    assert seen.generator is generator
    assert sampler.gradients == [False] * 4  # not even through the parameters of h
    loss.sum().backward()
    assert z.grad is not None
    assert z.grad.any()


def test_actions_chosen_step_by_step_are_those_of_the_policy_along_its_own_rollout() -> None:
    """On a line: h(z, a) = z + a, the policy goes right (1) below 2 and stays (0) above."""
    aux = trajectories(DISCRETE, 3, 1, PolicyGuided(), forward=lambda z, a: z + a[:, None])
    z = torch.tensor([[0.0], [1.0], [9.0]])
    drawn = aux.draw(3, z.device, z=z, policy=lambda z: (z[:, 0] < 2).long())
    assert drawn[:, 0].tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
