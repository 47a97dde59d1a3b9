"""The auxiliary objective of every agent as facts: L_pred, L_cyc, Eq. 5, what learns, and what is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import playvirtual as pv
from playvirtual import kernels
from playvirtual.agents.agent import make_agent
from playvirtual.method import (
    DenseDynamics,
    DiscreteActions,
    ProjectionHead,
    SamplerInput,
    SelfPrediction,
    VirtualTrajectories,
    cosine_distance,
    cycle,
)

B, K, M, D = 4, 3, 2, 5
SPACE = DiscreteActions(3)
IMAGE = (1, 4, 4)


class Brightness(NamedTuple):
    """The random numbers of `Brighten`."""

    values: Tensor  # (N,)

    def split(self, sizes: Sequence[int]) -> list[Brightness]:
        return [Brightness(part) for part in self.values.split(list(sizes))]


class Brighten:
    """An augmentation that is easy to check: every view is its image plus one number."""

    def draw(self, count: int, device: torch.device, generator: torch.Generator | None = None) -> Brightness:
        return Brightness(torch.rand(count, generator=generator, device=device))

    def __call__(self, images: Tensor, randoms: Brightness, source: Tensor | None = None) -> Tensor:
        views = images if source is None else images[source]
        return views / 255 + randoms.values[:, None, None, None]


class World:
    """Networks of one agent and one batch."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.f, self.f_m = (nn.Sequential(nn.Flatten(), nn.Linear(16, D)) for _ in range(2))
        self.h, self.b = DenseDynamics(D, SPACE, 8), DenseDynamics(D, SPACE, 8)
        self.g, self.q, self.g_m = (ProjectionHead(D, 8) for _ in range(3))
        self.augment = Brighten()
        self.observations = torch.randint(256, (B, K + 1, *IMAGE), dtype=torch.uint8)
        self.actions = torch.randint(3, (B, K))

    def virtual(self, **changes: Any) -> VirtualTrajectories:
        heads = {"projector": self.g, "predictor": self.q, "target_projector": self.g_m}
        given: dict[str, Any] = {"forward": self.h, "backward": self.b, "actions": SPACE, "K": K, "M": M, **heads}
        return VirtualTrajectories(**{**given, **changes})

    def objective(self, virtual: VirtualTrajectories | None, **changes: Any) -> SelfPrediction:
        given: dict[str, Any] = {
            "encoder": self.f,
            "target_encoder": self.f_m,
            "augment": self.augment,
            "projector": self.g,
            "target_projector": self.g_m,
            "predictor": self.q,
            "forward": self.h,
            "K": K,
            "virtual": virtual,
        }
        return SelfPrediction(**{**given, **changes})


def gradients(loss: Tensor, module: nn.Module) -> list[Tensor | None]:
    return [*torch.autograd.grad(loss.sum(), [*module.parameters()], allow_unused=True, retain_graph=True)]


def test_prediction_loss_sums_the_distances_along_the_recorded_actions() -> None:
    """Eq. 1 and 2 written out: ẑ_{t+k} by h step by step against the target network's views of s_{t+k}."""
    world = World()
    objective = world.objective(None)
    inputs = objective.draw(world.actions)
    z = world.f(world.augment(world.observations[:, 0], inputs.online))
    brightness = inputs.target.values.view(B, K)
    expected = torch.zeros(B)
    for k in range(K):
        z = world.h(z, world.actions[:, k])
        view = world.observations[:, k + 1] / 255 + brightness[:, k, None, None, None]
        expected = expected + cosine_distance(world.q(world.g(z)), world.g_m(world.f_m(view)))
    losses = objective(world.observations, world.actions, inputs=inputs)
    torch.testing.assert_close(losses["pred"], expected)
    assert losses["cyc"].tolist() == [0.0] * B


def test_cycle_loss_is_the_mean_over_the_ways_back_of_virtual_trajectories() -> None:
    """Eq. 4 with Definition 1: each of the M cycles against its own augmented view of s_t."""
    world = World()
    objective = world.objective(world.virtual())
    inputs = objective.draw(world.actions)
    assert inputs.virtual is not None
    z = objective.encode(world.observations, inputs)
    views = inputs.target.values[B * K :].view(B, M)
    expected = torch.zeros(B)
    for m in range(M):
        _, z_cycle = cycle(world.h, world.b, z, inputs.virtual[:, m])
        target = world.g_m(world.f_m(world.observations[:, 0] / 255 + views[:, m, None, None, None]))
        expected = expected + cosine_distance(world.q(world.g(z_cycle[:, 0])), target) / M
    losses = objective(world.observations, world.actions, inputs=inputs)
    torch.testing.assert_close(losses["cyc"], expected)
    torch.testing.assert_close(
        losses["pred"],
        world.objective(None).losses(
            z, objective.targets(world.observations, inputs), world.actions, inputs
        )["pred"],
    )  # fmt: skip


@pytest.mark.parametrize("constraint", ["end", "every"])
@pytest.mark.parametrize("train_forward", [True, False])
def test_cycles_along_recorded_actions_add_to_those_along_virtual_ones(constraint: str, train_forward: bool) -> None:
    world = World()
    virtual = world.virtual(constraint=constraint, train_forward=train_forward)
    both = world.objective(virtual, real_cycle=True)
    inputs = both.draw(world.actions)
    assert inputs.virtual is not None
    z, targets = both.encode(world.observations, inputs), both.targets(world.observations, inputs)
    assert targets.cycle.shape[:2] == (B, M + 1)
    found = both.losses(z, targets, world.actions, inputs)["cyc"]
    along_virtual = virtual.loss(z, targets.cycle[:, :M], inputs.virtual)
    along_recorded = virtual.loss(z, targets.cycle[:, M], world.actions[:, None])
    torch.testing.assert_close(found, along_virtual + along_recorded)


def test_without_virtual_trajectories_the_recorded_cycle_stays() -> None:
    """SPR with a backward model: d(q(g(z′_t)), g_m(z̃_t)) along the recorded actions alone."""
    world = World()
    objective = world.objective(world.virtual(M=0), real_cycle=True)
    inputs = objective.draw(world.actions)
    z, targets = objective.encode(world.observations, inputs), objective.targets(world.observations, inputs)
    _, z_cycle = cycle(world.h, world.b, z, world.actions)
    expected = cosine_distance(world.q(world.g(z_cycle[:, 0])), targets.cycle[:, 0])
    torch.testing.assert_close(objective.losses(z, targets, world.actions, inputs)["cyc"], expected)


def test_with_every_step_the_inner_states_count_as_well() -> None:
    """Σ_k d(q(g(z′_{t+k})), g_m(ẑ_{t+k})) over the K − 1 states between the ends is added."""
    world = World()
    end, every = (world.objective(world.virtual(constraint=constraint)) for constraint in ("end", "every"))
    inputs = end.draw(world.actions)
    assert inputs.virtual is not None
    z = end.encode(world.observations, inputs).repeat_interleave(M, 0)
    z_hat, z_cycle = cycle(world.h, world.b, z, inputs.virtual.flatten(0, 1))
    inner = cosine_distance(world.q(world.g(z_cycle[:, 1:])), world.g_m(z_hat[:, :-1])).sum(1).view(B, M).mean(1)
    first, second = (o(world.observations, world.actions, inputs=inputs)["cyc"] for o in (end, every))
    torch.testing.assert_close(second, first + inner)


@pytest.mark.parametrize("train_forward", [True, False])
def test_the_forward_model_learns_from_cycles_only_if_it_may(train_forward: bool) -> None:
    world = World()
    objective = world.objective(world.virtual(train_forward=train_forward), real_cycle=True)
    losses = objective(world.observations, world.actions, generator=torch.Generator().manual_seed(0))
    assert all((found is not None) == train_forward for found in gradients(losses["cyc"], world.h))
    assert all(found is not None and found.any() for found in gradients(losses["cyc"], world.b))
    assert all(found is not None for found in gradients(losses["cyc"], world.f))
    assert all(found is not None for found in gradients(losses["pred"], world.h))
    other = world.objective(world.virtual(train_forward=True), real_cycle=True)
    again = other(world.observations, world.actions, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(losses["cyc"], again["cyc"])  # the value is the same, only the gradient is not


def test_prediction_does_not_train_the_backward_model() -> None:
    world = World()
    losses = world.objective(world.virtual())(world.observations, world.actions)
    assert gradients(losses["pred"], world.b) == [None] * len([*world.b.parameters()])


@pytest.mark.parametrize(
    ("changes", "products"),
    [
        ({}, (2, 1)),
        ({"train_forward": False}, (2, 1)),
        ({"constraint": "every"}, (3, 3)),
        ({"predictor": None}, (2, 2)),
        ({"batch_norm": True}, (2, 2)),
        ({"projector": None, "predictor": None, "target_projector": None}, (1, 1)),
    ],
)
def test_on_a_gpu_heads_that_serve_both_losses_see_all_states_at_once(
    changes: dict[str, Any], products: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses and gradients are those of two products, and so they are where the two losses need different ones."""
    mask = torch.tensor([[1.0] * 4, [1.0] * 3 + [0.0], [1.0] + [0.0] * 3, [0.0] * 4])
    found = []
    for on_gpu, wanted in zip((False, True), products, strict=True):
        monkeypatch.setattr(kernels, "saves_launches", lambda x, answer=on_gpu: answer)
        world, batches, given = World(), [], dict(changes)
        if given.pop("batch_norm", False):  # predictions and cycles have batch statistics of their own
            world.g = nn.Sequential(world.g, nn.BatchNorm1d(D))
        world.g.register_forward_hook(lambda head, seen, out, batches=batches: batches.append(len(out)))
        objective = world.objective(world.virtual(**given))
        losses = objective(
            world.observations, world.actions, mask, generator=torch.Generator().manual_seed(0)
        )  # fmt: skip
        assert len(batches) == wanted
        total = objective.total(losses, 0.7).mean()
        parts = [world.f, world.h, world.b, world.g, world.q]
        moved = [gradient for part in parts for gradient in gradients(total, part) if gradient is not None]
        found.append([losses["pred"], losses["cyc"], *moved])
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_targets_have_no_gradient() -> None:
    world = World()
    objective = world.objective(world.virtual())
    targets = objective.targets(world.observations, objective.draw(world.actions))
    assert not any(target.requires_grad for target in targets if target is not None)
    losses = objective(world.observations, world.actions)
    assert not losses.pop("target_spread").requires_grad
    for loss in losses.values():
        assert set(gradients(loss, world.f_m)) == set(gradients(loss, world.g_m)) == {None}


def test_the_mask_leaves_out_states_beyond_the_end_of_an_episode() -> None:
    """Column k of (B, K+1) belongs to s_{t+k}: L_pred reads columns 1 … K, L_cyc column 0."""
    world = World()
    objective = world.objective(world.virtual())
    inputs = objective.draw(world.actions)
    mask = torch.ones(B, K + 1)
    mask[1, 2:] = 0  # ends after s_{t+1}
    mask[2] = 0  # no sequence at all
    mask[3, 1:] = 0  # s_t alone
    whole = objective(world.observations, world.actions, inputs=inputs)
    masked = objective(world.observations, world.actions, mask, inputs=inputs)
    changed = world.observations.clone()
    changed[1, 2:] = 255 - changed[1, 2:]
    torch.testing.assert_close(objective(changed, world.actions, mask, inputs=inputs)["pred"], masked["pred"])
    assert masked["pred"][0] == whole["pred"][0]
    assert 0 < masked["pred"][1] < whole["pred"][1]
    assert masked["pred"][3] == 0
    assert masked["cyc"][[0, 1, 3]].equal(whole["cyc"][[0, 1, 3]])
    assert masked["pred"][2] == masked["cyc"][2] == 0


def test_the_total_is_equation_5() -> None:
    world = World()
    objective = world.objective(None, lambda_pred=2.0)
    losses = {"pred": torch.tensor([1.0, 2.0]), "cyc": torch.tensor([10.0, 20.0])}
    assert objective.total(losses, 0.5).tolist() == [1.0 * 2 + 5, 2.0 * 2 + 10]
    assert objective.total(losses, torch.tensor(0.5), torch.tensor([100.0, 200.0])).tolist() == [107.0, 214.0]


def test_the_weight_of_the_cycle_loss_is_that_of_the_virtual_trajectories() -> None:
    world = World()
    virtual = VirtualTrajectories(
        forward=world.h, backward=world.b, actions=SPACE, K=K, M=2, lambda_cyc_max=2.0, i_end=100
    )
    objective = world.objective(virtual)
    assert float(objective.lambda_cyc(0)) == pytest.approx(2 * math.exp(-5))
    assert float(objective.lambda_cyc(50)) == pytest.approx(2 * math.exp(-1.25))
    assert float(objective.lambda_cyc(100)) == float(objective.lambda_cyc(10**6)) == 2.0
    assert float(world.objective(None).lambda_cyc(100)) == 0.0


def test_models_may_be_plain_functions_of_state_and_action() -> None:
    """As other people's are: the objective is that of the same models as `Dynamics`."""
    world = World()
    h, b = (lambda z, a: world.h(z, a)), (lambda z, a: world.b(z, a))
    plain = VirtualTrajectories(forward=h, backward=b, actions=SPACE, K=K, M=2)
    ours = VirtualTrajectories(forward=world.h, backward=world.b, actions=SPACE, K=K, M=2)
    inputs = world.objective(ours).draw(world.actions, torch.Generator().manual_seed(3))
    losses = [
        objective(world.observations, world.actions, inputs=inputs)
        for objective in (world.objective(ours), world.objective(plain, forward=h))
    ]
    for name in ("pred", "cyc"):
        torch.testing.assert_close(losses[0][name], losses[1][name])


def test_backward_prediction_goes_from_the_last_recorded_state_back_to_the_first() -> None:
    """Written out: z′_{t+K} = f(s_{t+K}), z′_{t+k} = b(z′_{t+k+1}, a_{t+k}), each against the target's view of s_{t+k}.

    Forward prediction shares the target's views of s_{t+1} … s_{t+K−1} and has all that it has alone.
    """
    world = World()
    objective = world.objective(world.virtual(M=0), backward_prediction=True)
    inputs = objective.draw(world.actions)
    assert inputs.last is not None
    brightness = inputs.target.values.view(B, K + 1)  # s_t … s_{t+K}

    def target(k: int) -> Tensor:
        return world.g_m(world.f_m(world.observations[:, k] / 255 + brightness[:, k, None, None, None]))

    z = world.f(world.observations[:, K] / 255 + inputs.last.values[:, None, None, None])
    backward = torch.zeros(B)
    for k in (2, 1, 0):
        z = world.b(z, world.actions[:, k])
        backward = backward + cosine_distance(world.q(world.g(z)), target(k))
    z = world.f(world.observations[:, 0] / 255 + inputs.online.values[:, None, None, None])
    forward = torch.zeros(B)
    for k in range(K):
        z = world.h(z, world.actions[:, k])
        forward = forward + cosine_distance(world.q(world.g(z)), target(k + 1))
    losses = objective(world.observations, world.actions, inputs=inputs)
    assert list(losses) == ["pred", "backward_pred", "cyc", "target_spread"]
    torch.testing.assert_close(losses["backward_pred"], backward)
    torch.testing.assert_close(losses["pred"], forward)
    assert losses["cyc"].tolist() == [0.0] * B


def test_backward_prediction_by_hand() -> None:
    """One number for a state, b(z, a) = z − a, d(x, y) = 2 − 2 cos of (x, 1) and (y, 1), K = 2.

    s = 3, 5, 6 with a = 2, 1: from 6 back to 5 and 3, which is what was recorded. With a = 2, 4 it is 2 and 0.
    """

    def f(images: Tensor) -> Tensor:
        return images[:, 0, 0, :1]  # the first pixel

    def project(z: Tensor) -> Tensor:
        return torch.cat([z, torch.ones_like(z)], 1)

    class Plain(Brighten):
        def __call__(self, images: Tensor, randoms: Brightness, source: Tensor | None = None) -> Tensor:
            return (images if source is None else images[source]).float()

    def h(z: Tensor, a: Tensor) -> Tensor:
        return z + a[:, None]

    def b(z: Tensor, a: Tensor) -> Tensor:
        return z - a[:, None]

    objective = SelfPrediction(
        encoder=f, target_encoder=f, augment=Plain(), projector=project, target_projector=project,
        predictor=nn.Identity(), forward=h, K=2, backward_prediction=True, lambda_pred=3.0,
        virtual=VirtualTrajectories(forward=h, backward=b, actions=spaces.Discrete(5), K=2, M=0),
    )  # fmt: skip
    observations = torch.tensor([3, 5, 6], dtype=torch.uint8).view(1, 3, 1, 1, 1).expand(2, 3, 1, 1, 1)
    losses = objective(observations, torch.tensor([[2, 1], [2, 4]]))
    far = 2 - 2 * (2 * 5 + 1) / math.sqrt(5 * 26) + 2 - 2 * (0 * 3 + 1) / math.sqrt(1 * 10)
    torch.testing.assert_close(losses["backward_pred"], torch.tensor([0.0, far]), atol=1e-6, rtol=1e-6)
    total = objective.total(losses, 1.0)
    torch.testing.assert_close(total, 3.0 * (losses["pred"] + torch.tensor([0.0, far])))


def test_backward_prediction_counts_where_the_whole_sequence_is_in_the_episode() -> None:
    world = World()
    objective = world.objective(world.virtual(M=0), backward_prediction=True)
    inputs = objective.draw(world.actions)
    mask = torch.ones(B, K + 1)
    mask[1, K:] = 0  # the state that it would start in belongs to another episode
    mask[2] = 0
    whole = objective(world.observations, world.actions, inputs=inputs)["backward_pred"]
    masked = objective(world.observations, world.actions, mask, inputs=inputs)["backward_pred"]
    assert masked[[1, 2]].tolist() == [0.0, 0.0]
    assert masked[[0, 3]].equal(whole[[0, 3]])
    assert (whole > 0).all()


@pytest.mark.parametrize("metric", ["projection", "latent"])
def test_backward_prediction_beside_cycles_changes_neither_them_nor_forward_prediction(metric: str) -> None:
    """The same views given, all other losses are those without it; cycles may be compared in the latent space."""
    world = World()
    heads = {} if metric == "projection" else {"projector": None, "predictor": None, "target_projector": None}
    plain = world.objective(world.virtual(**heads), real_cycle=True)
    both = world.objective(world.virtual(**heads), real_cycle=True, backward_prediction=True)
    inputs = both.draw(world.actions)
    views = inputs.target.values
    recorded, cycles = views[: B * (K + 1)].view(B, K + 1), views[B * (K + 1) :]
    same = inputs._replace(target=Brightness(torch.cat([recorded[:, 1:].flatten(), cycles])), last=None)
    found = both(world.observations, world.actions, inputs=inputs)
    expected = plain(world.observations, world.actions, inputs=same)
    for name in ("pred", "cyc"):
        torch.testing.assert_close(found[name], expected[name])
    assert "backward_pred" not in expected


def test_backward_prediction_draws_two_views_more_and_nothing_else_differently() -> None:
    """One of s_{t+K} for the online encoder and one of s_t for the target's; without it the draws are as they were."""
    world = World()
    drawn = [
        world.objective(world.virtual(), backward_prediction=on).draw(
            world.actions, torch.Generator().manual_seed(1), num_rl=3, num_rl_target=7
        )
        for on in (False, True)
    ]
    assert [len(inputs.target.values) for inputs in drawn] == [7 + B * (K + M), 7 + B * (K + M + 1)]
    assert [len(inputs.last.values) for inputs in drawn if inputs.last is not None] == [0, B]
    plain = torch.Generator().manual_seed(1)
    numbers = torch.rand(B + 3 + 7 + B * (K + M), generator=plain)
    off = drawn[0]
    assert torch.cat([off.online.values, off.rl.values, off.target.values]).equal(numbers)
    assert off.virtual is not None
    assert off.virtual.equal(world.virtual().draw(B, torch.device("cpu"), plain))


def test_backward_prediction_needs_a_backward_model() -> None:
    with pytest.raises(ValueError, match="backward_prediction: needs `virtual`, whose backward model it uses"):
        World().objective(None, backward_prediction=True)


def test_prediction_and_cycles_share_the_forward_model_and_the_horizon() -> None:
    world = World()
    for options in ({"forward": world.b, "K": K}, {"forward": world.h, "K": K + 1}):
        other = VirtualTrajectories(backward=world.b, actions=SPACE, M=2, **options)
        with pytest.raises(ValueError, match="virtual: its K and its forward model are not these"):
            world.objective(other)


def test_no_steps_are_no_loss() -> None:
    """K = 0: neither dynamics model nor prediction head is needed."""
    world = World()
    objective = world.objective(None, K=0, forward=None, predictor=None)
    losses = objective(world.observations[:, :1], world.actions[:, :1])
    assert losses["pred"].tolist() == losses["cyc"].tolist() == [0.0] * B
    assert len(objective.draw(world.actions[:, :1]).target.values) == 0


@pytest.mark.parametrize(("steps", "virtual"), [(K, True), (K, False), (0, False)])
def test_images_of_the_rl_loss_go_through_the_same_pass_of_the_target_encoder(steps: int, virtual: bool) -> None:
    world = World()
    calls: list[int] = []

    def f_m(images: Tensor) -> Tensor:
        calls.append(len(images))
        return world.f_m(images)  # type: ignore[no-any-return]

    objective = world.objective(world.virtual() if virtual else None, K=steps, target_encoder=f_m)
    images = torch.randint(256, (6, *IMAGE), dtype=torch.uint8)
    inputs = objective.draw(world.actions[:, : max(steps, 1)], num_rl=2, num_rl_target=6)
    targets = objective.targets(world.observations[:, : steps + 1], inputs, images)
    assert calls == [6 + B * (steps + objective.views)]
    views = world.augment(images, Brightness(inputs.target.values[:6]))
    torch.testing.assert_close(targets.rl, world.f_m(views))
    assert len(inputs.rl.values) == 2


@pytest.mark.parametrize("backward_prediction", [False, True])
def test_targets_are_the_same_of_images_that_are_in_one_piece(backward_prediction: bool) -> None:
    world = World()
    objective = world.objective(world.virtual(), real_cycle=True, backward_prediction=backward_prediction)
    rl_images = torch.randint(256, (6, *IMAGE), dtype=torch.uint8)
    inputs = objective.draw(world.actions, num_rl_target=6)
    images = torch.cat([world.observations.flatten(0, 1), rl_images])
    expected = objective.targets(world.observations, inputs, rl_images)
    found = objective.targets(world.observations, inputs, rl_images, images)
    for one, other in zip(found, expected, strict=True):
        assert one is None if other is None else torch.equal(one, other)


def test_too_many_or_too_few_images_are_refused() -> None:
    world = World()
    objective = world.objective(None)
    images = torch.zeros(B * (K + 1) + 1, *IMAGE, dtype=torch.uint8)
    for given, rl_images in ((images, None), (images[:-2], None), (images, images[:2])):
        with pytest.raises(ValueError, match=r"images: \d+ are not allowed; allowed: 1[68], B·\(K \+ 1\) and R"):
            objective.targets(world.observations, objective.draw(world.actions), rl_images, given)


@pytest.mark.parametrize(("real_cycle", "views"), [(False, M), (True, M + 1)])
def test_random_inputs_have_one_number_for_every_view_and_one_action_for_every_step(
    real_cycle: bool, views: int
) -> None:
    world = World()
    objective = world.objective(world.virtual(), real_cycle=real_cycle)
    inputs = objective.draw(world.actions, torch.Generator().manual_seed(1), num_rl=3, num_rl_target=7)
    assert [len(part.values) for part in inputs[:3]] == [B, 3, 7 + B * (K + views)]
    assert inputs.virtual is not None
    assert inputs.virtual.shape == (B, M, K)
    assert inputs.generator is None  # nothing is left to be drawn
    again = objective.draw(world.actions, torch.Generator().manual_seed(1), num_rl=3, num_rl_target=7)
    assert torch.equal(again.virtual, inputs.virtual)  # type: ignore[arg-type]
    assert torch.equal(again.target.values, inputs.target.values)


def test_spr_draws_no_virtual_actions() -> None:
    inputs = World().objective(None).draw(World().actions)
    assert inputs.virtual is not None
    assert inputs.virtual.shape == (B, 0, K)


def test_losses_are_a_function_of_their_random_inputs() -> None:
    world = World()
    objective = world.objective(world.virtual())
    inputs = objective.draw(world.actions)
    first, second = (objective(world.observations, world.actions, inputs=inputs) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_sampler_that_sees_the_state_draws_once_it_is_encoded() -> None:
    """From the generator that `draw` was given, with the policy of the objective and z without gradient."""
    world = World()
    seen: list[SamplerInput] = []

    class Sees:
        sees_state = True

        def __call__(self, given: SamplerInput) -> Tensor:
            seen.append(given)
            return given.action_space.uniform((given.batch_size, given.M, given.K), given.generator, given.device)

    def policy(z: Tensor) -> Tensor:
        return z.argmax(-1) % SPACE.n

    objective = world.objective(world.virtual(sampler=Sees()), policy=policy)
    generator = torch.Generator().manual_seed(3)
    inputs = objective.draw(world.actions, generator)
    assert inputs.virtual is None
    assert not seen
    losses = objective(world.observations, world.actions, inputs=inputs)
    (given,) = seen
    z = objective.encode(world.observations, inputs)
    assert given.z is not None
    torch.testing.assert_close(given.z, z.detach())
    assert not given.z.requires_grad
    assert given.policy is policy
    assert given.generator is generator
    assert given.forward is world.h
    assert torch.equal(given.recorded, world.actions)  # type: ignore[arg-type]
    assert (losses["cyc"] > 0).all()


def test_the_encoders_belong_to_the_agent() -> None:
    world = World()
    objective = world.objective(world.virtual())
    own = {id(p) for p in objective.parameters()}
    assert own.isdisjoint(id(p) for module in (world.f, world.f_m) for p in module.parameters())
    assert own >= {id(p) for module in (world.h, world.b, world.g, world.q) for p in module.parameters()}


@pytest.mark.parametrize("lacking", [{"forward": None}, {"predictor": None}, {"real_cycle": True}])
def test_what_is_missing_is_named(lacking: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(lacking))}.*; allowed: "):
        World().objective(None, **lacking)


@pytest.mark.parametrize("task", ["toy/catch", "toy/reach"])
def test_every_agent_trains_through_this_class(task: str) -> None:
    config = pv.build(task, device="cpu", hidden=16)
    discrete = task == "toy/catch"
    space = spaces.Discrete(3) if discrete else spaces.Box(-1, 1, (2,))
    agent: Any = make_agent(config, (1, 10, 10) if discrete else (3, 12, 12), space, torch.device("cpu"), 0)
    assert type(agent.objective) is SelfPrediction
    assert type(agent.objective.virtual) is VirtualTrajectories
    assert agent.objective.h is agent.objective.virtual.h is agent.parts["forward_dynamics"]
    assert agent.objective.virtual.b is agent.parts["backward_dynamics"]


@pytest.mark.parametrize("name", ["observations", "mask"])
def test_sequences_of_another_length_are_refused(name: str) -> None:
    world = World()
    given = {"observations": world.observations, "actions": world.actions, "mask": torch.ones(B, K + 1)}
    given[name] = given[name][:, :-1]
    with pytest.raises(ValueError, match=rf"^{name}: \({B}, {K}.*\) is not allowed; allowed: \({B}, {K + 1}\), K \+ 1"):
        world.objective(world.virtual())(**given)
