"""Section 3 of the paper as facts: rollouts, cycles, losses, schedules, gradients."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import playvirtual as pv
from playvirtual.method import (
    DISTANCES,
    BoxActions,
    ConvDynamics,
    DenseDynamics,
    DiscreteActions,
    Perturbed,
    RolloutBatch,
    Targets,
    as_dynamics,
    cosine_distance,
    cycle,
    gaussian_ramp_up,
    prediction_loss,
    rescale,
    squared_distance,
)
from playvirtual.method.projection import spread


def add(z: Tensor, a: Tensor) -> Tensor:
    return z + a


def subtract(z: Tensor, a: Tensor) -> Tensor:
    return z - a


def test_rollout_feeds_every_prediction_into_the_next() -> None:
    z, actions = torch.tensor([[1.0]]), torch.tensor([[[1.0], [10.0], [100.0]]])
    assert as_dynamics(add).rollout(z, actions)[..., 0].tolist() == [[2.0, 12.0, 112.0]]


def test_cycle_runs_forward_then_back_over_the_same_actions() -> None:
    z, actions = torch.tensor([[1.0]]), torch.tensor([[[1.0], [10.0], [100.0]]])
    z_hat, z_cycle = cycle(as_dynamics(add), as_dynamics(lambda z, a: z - 2 * a), z, actions)
    assert z_hat[..., 0].tolist() == [[2.0, 12.0, 112.0]]
    # back from 112: − 200 = −88 (t+2), − 20 = −108 (t+1), − 2 = −110 (t); given from t on
    assert z_cycle[..., 0].tolist() == [[-110.0, -108.0, -88.0]]


@pytest.mark.parametrize("shape", [(), (4,), (1, 4), (3, 1, 4), (1, 2, 4), (3, 2, 1, 4)])
def test_a_target_that_would_be_broadcast_is_refused(shape: tuple[int, ...]) -> None:
    box = BoxActions((-1.0,) * 4, (1.0,) * 4)
    aux = pv.VirtualTrajectories(forward=add, backward=subtract, actions=box, K=2, M=2)
    z = torch.rand(3, 4)
    with pytest.raises(ValueError, match=r"target: .* allowed: \(3, D\) or \(3, 2, D\)"):
        aux(z, torch.rand(shape))
    assert aux(z, z).shape == aux(z, z[:, None].expand(3, 2, 4)).shape == (3,)


def test_a_target_projection_that_changes_nothing_is_one() -> None:
    aux = pv.VirtualTrajectories(
        forward=add,
        backward=subtract,
        actions=BoxActions((-1.0,), (1.0,)),
        K=1,
        M=1,
        projector=nn.Linear(1, 1),
        target_projector=nn.Sequential(),  # empty, and so false in Python's eyes
    )
    assert isinstance(aux.g_m, nn.Sequential)


@settings(max_examples=40)
@given(B=st.integers(1, 4), M=st.integers(1, 5), K=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_cycle_loss_of_an_exact_inverse_is_zero(B: int, M: int, K: int, seed: int) -> None:
    """Definition 1 holds, for any actions, when b undoes h."""
    generator = torch.Generator().manual_seed(seed)
    aux = pv.VirtualTrajectories(forward=add, backward=subtract, actions=BoxActions((-1.0,) * 3, (1.0,) * 3), K=K, M=M)
    z = torch.randn(B, 3, generator=generator)
    assert aux(z, z, step=50_000, generator=generator).abs().max() < 1e-10


def test_cycle_loss_of_linear_models_by_hand() -> None:
    """h(z, a) = 2z, b(z, a) = z/2 + (a, 0): K = 2 steps give z′ = z + (a₁/2 + a₀, 0)."""
    aux = pv.VirtualTrajectories(
        forward=lambda z, a: 2 * z,
        backward=lambda z, a: z / 2 + torch.stack([a, torch.zeros_like(a)], 1),
        actions=3,
        K=2,
        M=2,
        distance=squared_distance,
    )
    z = torch.tensor([[1.0, 1.0]])
    actions = torch.tensor([[[1, 2], [2, 0]]])  # (B = 1, M = 2, K = 2)
    # trajectory 1: shift 2/2 + 1 = 2, mean square over two components 4/2 = 2; trajectory 2: shift 2, the same
    assert aux.loss(z, z, actions).tolist() == [2.0]
    # cosine: z′ = (3, 1), z = (1, 1): 2 − 2·4/√20
    aux.d = cosine_distance
    assert aux.loss(z, z, actions).item() == pytest.approx(2 - 8 / math.sqrt(20), abs=1e-6)


def test_every_step_adds_the_inner_states() -> None:
    """With b off by one in each step, z′_{t+k} misses ẑ_{t+k} by K − k: squares 9 (end), and 4 + 1 inside."""
    settings: dict[str, Any] = {
        "forward": add,
        "backward": lambda z, a: z - a + 1,
        "actions": BoxActions((0.0,), (1.0,)),
        "K": 3,
        "M": 4,
        "distance": squared_distance,
    }
    z = torch.zeros(2, 1)
    actions = torch.rand(2, 4, 3, 1)
    end = pv.VirtualTrajectories(**settings).loss(z, z, actions)
    every = pv.VirtualTrajectories(**settings, constraint="every").loss(z, z, actions)
    torch.testing.assert_close(end, torch.full((2,), 9.0))
    torch.testing.assert_close(every, torch.full((2,), 9.0 + 4.0 + 1.0))


def test_inner_targets_get_no_gradient() -> None:
    """With a way back that knows the actions alone, inner targets are all that could tell h or g_m of a loss."""
    torch.manual_seed(0)
    h, back = DenseDynamics(4, DiscreteActions(3), 8), nn.Linear(3, 4)
    g, g_m = nn.Linear(4, 4), nn.Linear(4, 4)
    for heads in ({}, {"projector": g, "target_projector": g_m}, {"projector": g}):
        aux = pv.VirtualTrajectories(
            forward=h,
            backward=lambda z, a: back(nn.functional.one_hot(a, 3).to(z.dtype)),
            actions=3,
            K=3,
            M=2,
            constraint="every",
            **heads,
        )
        z = torch.randn(5, 4, requires_grad=True)
        loss = aux(z, torch.randn(5, 4)).sum()
        outside = [z, *h.parameters(), *g_m.parameters()]
        assert torch.autograd.grad(loss, outside, allow_unused=True, retain_graph=True) == (None,) * len(outside)
        assert all(found.any() for found in torch.autograd.grad(loss, [*back.parameters()]))


def test_the_loss_is_weighed_by_the_ramp_up_or_in_full() -> None:
    aux = pv.VirtualTrajectories(forward=add, backward=add, actions=2, K=2, M=3, i_end=100, lambda_cyc_max=0.5)
    z, target = torch.tensor([[1.0], [2.0]]).expand(2, 3), torch.tensor([[1.0, 2.0, 3.0]]).expand(2, 3)
    aux.h, aux.b = as_dynamics(lambda z, a: z + a[:, None]), as_dynamics(lambda z, a: z * z + a[:, None])

    def weighed(*step: float) -> Tensor:
        return aux(z, target, *step, generator=torch.Generator().manual_seed(0))

    plain = aux.loss(z, target, aux.draw(2, z.device, torch.Generator().manual_seed(0)))
    assert (plain > 0.01).all()
    torch.testing.assert_close(weighed(), 0.5 * plain)
    torch.testing.assert_close(weighed(50), 0.5 * math.exp(-1.25) * plain)
    torch.testing.assert_close(weighed(100), 0.5 * plain)


def test_one_target_per_trajectory_or_one_for_all() -> None:
    def stay(z: Tensor, a: Tensor) -> Tensor:
        return z

    aux = pv.VirtualTrajectories(forward=stay, backward=stay, actions=2, K=1, M=2, distance=squared_distance)
    z, actions = torch.zeros(1, 1), torch.zeros(1, 2, 1, dtype=torch.long)
    assert aux.loss(z, torch.tensor([[[1.0], [3.0]]]), actions).item() == pytest.approx((1 + 9) / 2)
    assert aux.loss(z, torch.tensor([[2.0]]), actions).item() == pytest.approx(4)


@pytest.mark.parametrize(("K", "M"), [(0, 3), (3, 0)])
def test_no_steps_or_no_trajectories_cost_nothing(K: int, M: int) -> None:
    aux = pv.VirtualTrajectories(forward=add, backward=add, actions=2, K=K, M=M)
    assert aux(torch.ones(5, 2), torch.zeros(5, 2)).tolist() == [0.0] * 5


def test_prediction_loss_sums_over_steps_and_respects_the_mask() -> None:
    z_hat, z_tilde = torch.tensor([[[3.0], [1.0]]]), torch.tensor([[[1.0], [0.0]]])  # (1, K = 2, 1)
    assert prediction_loss(z_hat, z_tilde, squared_distance).tolist() == [5.0]
    assert prediction_loss(z_hat, z_tilde, squared_distance, torch.tensor([[1.0, 0.0]])).tolist() == [4.0]


def test_ramp_up() -> None:
    assert float(gaussian_ramp_up(0, 50_000)) == pytest.approx(math.exp(-5))
    assert float(gaussian_ramp_up(25_000, 50_000)) == pytest.approx(math.exp(-1.25))
    assert float(gaussian_ramp_up(50_000, 50_000)) == 1.0
    assert float(gaussian_ramp_up(10**9, 50_000, maximum=2.0)) == 2.0
    assert float(gaussian_ramp_up(0, 0, maximum=0.5)) == 0.5  # no warm-up


@given(st.integers(0, 200_000), st.integers(0, 200_000), st.integers(1, 100_000))
def test_ramp_up_never_falls_and_stays_in_range(i: int, j: int, i_end: int) -> None:
    earlier, later = (float(gaussian_ramp_up(step, i_end)) for step in sorted((i, j)))
    assert math.exp(-5) - 1e-6 <= earlier <= later <= 1.0


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8))
def test_cosine_distance_lies_between_0_and_4_and_ignores_scale(values: list[float]) -> None:
    p = torch.tensor(values)
    t = torch.arange(1.0, len(values) + 1)
    assert 0 <= float(cosine_distance(p, t)) <= 4 + 1e-5
    if float(p.norm()) > 1:
        assert float(cosine_distance(3 * p, t)) == pytest.approx(float(cosine_distance(p, t)), abs=1e-4)
        assert float(cosine_distance(p, p)) == pytest.approx(0, abs=1e-6)
        assert float(cosine_distance(p, -p)) == pytest.approx(4, abs=1e-4)


def test_distances_by_hand() -> None:
    p, t = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0])
    assert float(cosine_distance(p, t)) == pytest.approx(0.6**2 + 0.2**2)  # (0.6, 0.8) and (0, 1)
    assert float(squared_distance(p, t)) == pytest.approx((9 + 4) / 2)
    assert float(DISTANCES["normalised-mse"](p, t)) == pytest.approx((0.6**2 + 0.2**2) / 2)
    # A vector shorter than 1e-3 is divided by 1e-3: (1e-4, 0) becomes (0.1, 0).
    assert float(cosine_distance(torch.tensor([1e-4, 0.0]), t)) == pytest.approx(0.1**2 + 1)
    assert float(cosine_distance(t, torch.tensor([0.0, 5e-4]))) == pytest.approx(0.5**2)


def test_rescale_spans_zero_to_one_per_sample_and_guards_constants() -> None:
    z = torch.stack([torch.arange(8.0).view(2, 2, 2), 5 * torch.ones(2, 2, 2)])
    out = rescale(z)
    assert out[0].flatten().tolist() == pytest.approx([i / 7 for i in range(8)])
    assert out[1].abs().max() == 0


def test_rescale_of_a_constant_has_finite_gradients() -> None:
    z = torch.zeros(2, 3, requires_grad=True)
    rescale(z).sum().backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()


def test_conv_dynamics_equal_convolution_over_one_hot_planes() -> None:
    """The table look-up is the concatenation of the paper, only cheaper."""
    torch.manual_seed(0)
    model = ConvDynamics(5, DiscreteActions(4)).double()
    z, a = torch.rand(6, 5, 7, 7, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 1, 0])
    planes = nn.functional.one_hot(a, 4).double()[:, :, None, None].expand(-1, -1, 7, 7)
    x = model.bn(model.conv1(torch.cat([z, planes], 1)).relu())
    torch.testing.assert_close(model(z, a), rescale(model.conv2(x).relu()))


@pytest.mark.parametrize("train_forward", [True, False])
def test_cycle_gradients_reach_what_the_method_says(train_forward: bool) -> None:
    """Encoder and BDM always; the DM only if the cycle loss may update it (PlayVirtual-ND)."""
    torch.manual_seed(0)
    actions = DiscreteActions(3)
    h, b = DenseDynamics(4, actions, 8), DenseDynamics(4, actions, 8)
    g, q = nn.Linear(4, 4), nn.Linear(4, 4)
    z = torch.randn(5, 4, requires_grad=True)
    target = torch.randn(5, 4, requires_grad=True)
    aux = pv.VirtualTrajectories(
        forward=h,
        backward=b,
        projector=g,
        predictor=q,
        actions=actions,
        K=3,
        M=2,
        train_forward=train_forward,
    )
    aux(z, target).mean().backward()
    assert z.grad is not None
    assert z.grad.abs().sum() > 0
    assert target.grad is None
    for module in (b, g, q):
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())
    reached = [p.grad is not None for p in h.parameters()]
    assert all(reached) if train_forward else not any(reached)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"constraint": "all"}, "constraint: 'all' is not known; allowed: end, every"),
        ({"K": 2.5}, "K: 2.5 is not allowed; allowed: whole numbers from 0 on"),
        ({"M": "2A"}, "M: '2A' is not allowed; allowed: whole numbers from 0 on"),
        ({"M": -3}, "M: -3 is not allowed; allowed: whole numbers from 0 on"),
        ({"i_end": -1}, "i_end: -1 is not allowed; allowed: whole numbers from 0 on"),
        ({"lambda_cyc_max": -1}, "lambda_cyc_max: -1 is not allowed; allowed: finite numbers from 0 on"),
        ({"lambda_cyc_max": math.nan}, "lambda_cyc_max: nan is not allowed; allowed: finite numbers from 0 on"),
        ({"lambda_cyc_max": math.inf}, "lambda_cyc_max: inf is not allowed; allowed: finite numbers from 0 on"),
        ({"lambda_cyc_max": "1"}, "lambda_cyc_max: '1' is not allowed; allowed: finite numbers from 0 on"),
        (
            {"predictor": nn.Identity()},
            "predictor: is not allowed without a projector, which it follows; allowed: None",
        ),
        (
            {"target_projector": nn.Identity()},
            "target_projector: is not allowed without a projector, which it follows; allowed: None",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(option: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"K": 2, "M": 1, **option}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pv.VirtualTrajectories(forward=add, backward=subtract, actions=3, **settings)


def test_a_forward_model_whose_parameters_are_unknown_cannot_be_left_alone() -> None:
    linear = nn.Linear(1, 1)
    space = BoxActions((-1.0,), (1.0,))
    with pytest.raises(TypeError, match=r"^forward: .*lambda.* is not an nn.Module"):
        pv.VirtualTrajectories(
            forward=lambda z, a: linear(z) + a,
            backward=subtract,
            actions=space,
            K=2,
            M=1,
            train_forward=False,
        )


def test_detached_forward_model_computes_the_same_loss_and_encoder_gradient() -> None:
    torch.manual_seed(0)
    actions = DiscreteActions(3)
    h, b = DenseDynamics(4, actions, 8), DenseDynamics(4, actions, 8)
    virtual = actions.uniform((5, 2, 3))
    results = []
    for train_forward in (True, False):
        z = torch.linspace(-1, 1, 20).view(5, 4).requires_grad_()
        aux = pv.VirtualTrajectories(forward=h, backward=b, actions=actions, K=3, M=2, train_forward=train_forward)
        loss = aux.loss(z, torch.ones(5, 4), virtual)
        loss.sum().backward()
        results.append((loss.detach(), z.grad))
    torch.testing.assert_close(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])


@pytest.mark.parametrize("constraint", ["end", "every"])
def test_other_peoples_modules_are_left_alone_by_cycles_too(constraint: Any) -> None:
    """Any module (z, a) -> z as forward model gets no gradient, and passes one on to z."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, z: Tensor, a: Tensor) -> Tensor:
            out: Tensor = self.linear(z) + a[:, None]
            return out

    h, b = Model(), Model()
    aux = pv.VirtualTrajectories(forward=h, backward=b, actions=3, K=3, M=2, constraint=constraint, train_forward=False)
    z = torch.randn(5, 4, requires_grad=True)
    aux(z, torch.randn(5, 4)).sum().backward()
    assert all(p.grad is None for p in h.parameters())
    assert all(p.grad is not None and p.grad.any() for p in b.parameters())
    assert z.grad is not None
    assert z.grad.any()


def test_perturbed_sampling_needs_and_keeps_the_recorded_actions() -> None:
    aux = pv.VirtualTrajectories(
        forward=add,
        backward=subtract,
        actions=BoxActions((-1.0,), (1.0,)),
        K=3,
        M=4,
        sampler=Perturbed(sigma=0.0),
    )
    z, recorded = torch.zeros(2, 1), torch.rand(2, 3, 1)
    torch.testing.assert_close(aux.draw(2, z.device, recorded=recorded), recorded[:, None].expand(2, 4, 3, 1))
    with pytest.raises(ValueError, match="recorded: None is not allowed"):
        aux.draw(2, z.device)
    with pytest.raises(ValueError, match=r"recorded: \(2, 2, 1\) is not allowed; allowed: \(2, 3, …\)"):
        aux.draw(2, z.device, recorded=recorded[:, :2])


def test_it_fits_into_a_foreign_training_loop() -> None:
    """A user's own models, a Gymnasium space, plain PyTorch: the cycle error falls."""
    from gymnasium.spaces import Discrete

    torch.manual_seed(0)
    actions = DiscreteActions(4)
    h, b = DenseDynamics(6, actions, 32), DenseDynamics(6, actions, 32)
    aux = pv.VirtualTrajectories(forward=h, backward=b, actions=Discrete(4), K=4, M=3)
    optimizer = torch.optim.Adam(aux.parameters(), 3e-3)
    z = torch.randn(16, 6)
    history = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = aux(z, z).mean()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    assert np.mean(history[-10:]) < 0.3 * np.mean(history[:10])


@pytest.mark.parametrize("options", [{}, {"constraint": "every"}, {"train_forward": False}])
@pytest.mark.parametrize("dense", [True, False])
def test_one_pass_over_recorded_and_virtual_trajectories_is_one_after_the_other(
    dense: bool, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    B, M, K, space = 3, 2, 4, DiscreteActions(5)
    h, b = ((DenseDynamics(6, space, 8) if dense else ConvDynamics(6, space)) for _ in range(2))
    aux = pv.VirtualTrajectories(forward=h, backward=b, actions=space, K=K, M=M, **options)
    z = torch.rand(B, 6) if dense else torch.rand(B, 6, 3, 3)
    recorded, virtual = torch.randint(5, (B, K)), aux.draw(B, z.device)
    z_hat, z_hat_virtual = aux.rollout(z, recorded, virtual)
    torch.testing.assert_close(z_hat, h.rollout(z, recorded))
    assert (z_hat_virtual is not None) == (not options)
    target = z.flatten(1)
    torch.testing.assert_close(aux.loss(z, target, virtual, z_hat_virtual), aux.loss(z, target, virtual))
    if options:
        with pytest.raises(ValueError, match="z_hat: is not allowed"):
            aux.loss(z, target, virtual, z.repeat_interleave(M, 0)[:, None])


@pytest.mark.parametrize("dense", [True, False])
def test_a_rollout_without_a_step_ends_where_it_starts(dense: bool) -> None:
    space = DiscreteActions(5)
    model, z = (
        (DenseDynamics(6, space, 8), torch.rand(2, 6)) if dense else (ConvDynamics(6, space), torch.rand(2, 6, 3, 3))
    )
    (last,) = model.rollouts(RolloutBatch(z, torch.zeros((2, 0), dtype=torch.int64), last_only=True))
    assert torch.equal(last, z[:, None])


@pytest.mark.parametrize("dense", [True, False])
def test_last_states_alone_are_the_last_of_all_states(dense: bool) -> None:
    torch.manual_seed(0)
    space = DiscreteActions(5)
    model, z = (
        (DenseDynamics(6, space, 8), torch.rand(3, 6)) if dense else (ConvDynamics(6, space), torch.rand(3, 6, 3, 3))
    )
    actions = torch.randint(5, (3, 4))
    (last,) = model.rollouts(RolloutBatch(z, actions, last_only=True))
    torch.testing.assert_close(last, model.rollout(z, actions)[:, -1:])


def test_spread_by_hand() -> None:
    alike = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    assert float(spread(alike)) == pytest.approx(0, abs=1e-6)
    assert float(spread(torch.tensor([[5.0, 0.0], [0.0, 2.0]]))) == pytest.approx(0.5)  # the mean direction is (½, ½)
    assert float(spread(torch.tensor([[1.0, 0.0], [-7.0, 0.0]]))) == pytest.approx(1)
    assert float(spread(torch.zeros(3, 2))) == 0  # a point at zero is a point
    low = spread(alike.bfloat16())
    assert low.dtype == torch.float32
    assert float(low) == pytest.approx(0, abs=1e-4)  # rounded vectors, but not their mean
    next_state, later = torch.tensor([[5.0, 0.0], [0.0, 2.0]]), alike
    targets = Targets(rl=later[:0], future=torch.stack([next_state, later], 1), cycle=later)
    assert float(targets.spread()) == pytest.approx(0.5)


@given(st.lists(st.lists(st.floats(-10, 10), min_size=3, max_size=3), min_size=1, max_size=6))
def test_spread_is_half_the_mean_distance_of_all_pairs(values: list[list[float]]) -> None:
    vectors = torch.tensor(values)
    expected = cosine_distance(vectors[:, None], vectors).mean() / 2
    assert float(spread(vectors)) == pytest.approx(float(expected), abs=1e-5)
    assert float(spread(vectors)) >= 0


def test_the_two_halves_of_the_cycle_loss_are_the_whole() -> None:
    torch.manual_seed(0)
    h, b = (DenseDynamics(4, DiscreteActions(3), 8) for _ in range(2))
    settings: dict[str, Any] = {"forward": h, "backward": b, "actions": DiscreteActions(3), "K": 3, "M": 2}
    aux = pv.VirtualTrajectories(**settings)
    z, target = torch.rand(5, 4), torch.rand(5, 2, 4)
    actions = aux.draw(5, z.device)
    end = aux.project(aux.ends(z, actions)).unflatten(0, (5, 2))
    torch.testing.assert_close(aux.closing_loss(end, target), aux.loss(z, target, actions))
    with pytest.raises(ValueError, match="ends: with constraint='every' the steps between count as well"):
        pv.VirtualTrajectories(**settings, constraint="every").ends(z, actions)
    with pytest.raises(ValueError, match=r"target: \(4, 4\) is not allowed"):
        aux.closing_loss(end, target[:4, 0])
