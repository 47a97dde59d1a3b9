"""What each network of the continuous agent sees in a real update: which images, in which crops, how bright.

Pixels tell their own place and the image they belong to, so that views can be read off the networks' inputs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from playvirtual.agents.agent import Schedule
from playvirtual.agents.sac import Sac
from playvirtual.config.build import build
from playvirtual.method import BoxActions
from playvirtual.replay.batches import SacBatch, SequenceBatch, TransitionBatch

A, N, K, M = 2, 48, 2, 3  # N transitions and N sequences
IMAGE, CROP = 12, 9
NOW, NEXT, SEQUENCE = 0, N, 2 * N  # where the numbers of s_t, of s_{t+1} and of the sequences' states begin


def images(first: int, count: int) -> Tensor:
    """(count, 4, H, W) uint8: in every pixel its row, its column and the image's number in two digits."""
    number = torch.arange(first, first + count)[:, None, None].expand(-1, IMAGE, IMAGE)
    place = torch.arange(IMAGE)
    rows, columns = (axis.expand(count, -1, -1) for axis in torch.meshgrid(place, place, indexing="ij"))
    # The last channel is the same in all images: it shows the intensity.
    return torch.stack([10 * rows + 5, 10 * columns + 5, number // 200, number % 200, 0 * rows + 200], 1).to(
        torch.uint8
    )


class Seen(NamedTuple):
    """Views that were read off a network's input."""

    number: Tensor  # (V,) of the image
    offsets: Tensor  # (V, 2)
    factor: Tensor  # (V,) of the intensity


def read(x: Tensor) -> Seen:
    """What the crops (V, C, size, size) show; fails if they are no crops of these images."""
    factor = x[:, 4].mean((1, 2)) * 255 / 200
    pixels = x * 255 / factor[:, None, None, None]
    rounded = pixels.round()
    torch.testing.assert_close(pixels, rounded, atol=1e-2, rtol=0)
    places = torch.arange(CROP)
    rows, columns = (rounded[:, 0] - 5) / 10, (rounded[:, 1] - 5) / 10
    offsets = torch.stack([rows[:, 0, 0], columns[:, 0, 0]], 1)
    assert torch.equal(rows, (offsets[:, :1] + places)[:, :, None].expand_as(rows))
    assert torch.equal(columns, (offsets[:, 1:] + places)[:, None, :].expand_as(columns))
    return Seen((200 * rounded[:, 2, 0, 0] + rounded[:, 3, 0, 0]).long(), offsets.long(), factor)


class Watched(NamedTuple):
    online: list[Seen]  # by the critic's convolutions, which the actor shares, call by call
    target: list[Seen]  # by the target critic's
    momentum: list[Seen]  # by the momentum encoder's


def agent_of(method: str = "playvirtual", **options: Any) -> Sac:
    sizes = {"image_size": IMAGE, "crop_size": CROP, "hidden": 8, "dynamics_hidden": 8, "projection_hidden": 8}
    config = build("toy/reach", method=method, channels="4", K=K, M=M, **sizes, **options)
    box = BoxActions((-1.0,) * A, (1.0,) * A)
    return Sac(config, (5, IMAGE, IMAGE), box, generator=torch.Generator().manual_seed(5))


def batch() -> SacBatch:
    actions = torch.zeros(N, A)
    transitions = TransitionBatch(
        torch.arange(N), images(NOW, N), actions, torch.zeros(N), torch.full((N,), 0.9), images(NEXT, N)
    )
    states = images(SEQUENCE, N * (K + 1)).unflatten(0, (N, K + 1))
    return SacBatch(
        transitions, SequenceBatch(torch.arange(N), states, actions[:, None].repeat(1, K, 1), torch.ones(N, K + 1))
    )


def watch(agent: Sac) -> Watched:
    """Fills the lists whenever a network is asked."""
    seen = Watched([], [], [])
    networks = (agent.encoder, agent.target_critic.encoder, agent.momentum["encoder"])
    for views, network in zip(seen, networks, strict=True):

        def hook(_: nn.Module, inputs: tuple[Tensor], views: list[Seen] = views) -> None:
            views.append(read(inputs[0]))

        network.convs.register_forward_pre_hook(hook)
    return seen


@pytest.fixture(scope="module")
def seen() -> Watched:
    """Two updates with everything due."""
    torch.manual_seed(0)
    agent = agent_of()
    views = watch(agent)
    schedule = Schedule(agent.schedules)
    schedule.due = frozenset(("actor", "critic_target", "momentum"))
    for _ in range(2):
        agent.update(batch(), schedule)
    return views


def alike(one: Tensor, other: Tensor) -> float:
    """The share of equal crops; of independent ones it is 1/16 by chance."""
    return float((one == other).all(-1).float().mean())


def numbers(first: int, *, step: int = 1) -> Tensor:
    return first + step * torch.arange(N)


def test_who_sees_which_images(seen: Watched) -> None:
    now, later, sequence, again = seen.online[:4]
    for views, expected in (
        (now, numbers(NOW)),  # the critic's Q
        (later, numbers(NEXT)),  # the next action
        (sequence, numbers(SEQUENCE, step=K + 1)),  # z_t of the sequences
        (again, numbers(NOW)),  # the actor's action
        (seen.target[0], numbers(NEXT)),
    ):
        assert torch.equal(views.number, expected)
    states = torch.arange(SEQUENCE, SEQUENCE + N * (K + 1)).view(N, K + 1)
    expected = torch.cat([states[:, 1:].flatten(), states[:, 0].repeat_interleave(M)])
    assert torch.equal(seen.momentum[0].number, expected)
    assert [len(views) for views in seen] == [8, 2, 2]


def test_actor_and_critic_see_the_same_crops_of_an_image(seen: Watched) -> None:
    now, later, _, again = seen.online[:4]
    assert torch.equal(now.offsets, again.offsets)
    assert torch.equal(later.offsets, seen.target[0].offsets)


def test_crops_are_random_in_every_role_and_shared_by_none(seen: Watched) -> None:
    now, later, sequence, _ = seen.online[:4]
    momentum = seen.momentum[0].offsets
    future = momentum[: N * K].view(N, K, 2)
    cycle = momentum[N * K :].view(N, M, 2)
    roles = {"now": now.offsets, "next": later.offsets, "sequence": sequence.offsets}
    roles |= {f"future {k}": future[:, k] for k in range(K)} | {f"view {m}": cycle[:, m] for m in range(M)}
    roles |= {"next update": seen.online[4].offsets, "next update's views": seen.momentum[1].offsets[:N]}
    names = list(roles)
    for i, name in enumerate(names):
        offsets = roles[name]
        assert set(offsets.flatten().tolist()) == {0, 1, 2, 3}, name
        assert alike(offsets[:-1], offsets[1:]) < 0.3, name  # along the batch
        assert float((offsets[:, 0] == offsets[:, 1]).float().mean()) < 0.6, name  # rows and columns
        for other in names[:i]:
            assert alike(offsets, roles[other]) < 0.3, (name, other)


def test_only_the_auxiliary_objective_sees_other_intensities_one_for_each_view(seen: Watched) -> None:
    now, later, sequence, again = seen.online[:4]
    for views in (now, later, again, seen.target[0]):
        torch.testing.assert_close(views.factor, torch.ones(N), atol=1e-5, rtol=0)
    factors = torch.cat([sequence.factor, seen.momentum[0].factor])
    inside = factors[(factors - 1).abs() < 0.0999]  # the others are clipped at two standard deviations
    assert len(inside) > 0.9 * len(factors)
    assert len(set((inside * 1e6).round().tolist())) > 0.98 * len(inside)
    assert float(factors.min()) > 0.9 - 1e-4
    assert float(factors.max()) < 1.1 + 1e-4
    assert float(factors.std()) == pytest.approx(0.044, abs=0.006)  # 0.05, less what is clipped


def test_noise_of_the_two_actions_is_standard_normal_and_not_shared() -> None:
    agent = agent_of()
    drawn = [agent.draw(batch()) for _ in range(4)]
    noises = [one for draw in drawn for one in (draw.noise, draw.next_noise)]
    values = torch.cat(noises).flatten()
    assert len(set(values.tolist())) == len(values)
    assert float(values.mean()) == pytest.approx(0.0, abs=0.15)
    assert float(values.std()) == pytest.approx(1.0, abs=0.1)


def test_virtual_actions_differ_between_updates_samples_trajectories_and_steps() -> None:
    agent = agent_of()
    drawn = [agent.draw(batch()).auxiliary for _ in range(2)]
    virtual = torch.stack([one.virtual for one in drawn if one is not None and one.virtual is not None])
    assert virtual.shape == (2, N, M, K, A)
    assert len(set(virtual.flatten().tolist())) == virtual.numel()
    assert float(virtual.abs().max()) <= 1
    assert float(virtual.std()) == pytest.approx(3**-0.5, abs=0.03)  # uniform in [−1, 1]


def test_perturbed_actions_are_the_recorded_ones_with_noise_of_the_scale_asked_for() -> None:
    agent, learned = agent_of("playvirtual-perturbed", sigma=0.1), batch()
    assert learned.sequences is not None
    recorded = torch.linspace(-0.5, 0.5, N * K * A).view(N, K, A)
    inputs = agent.draw(learned._replace(sequences=learned.sequences._replace(actions=recorded))).auxiliary
    assert inputs is not None
    assert inputs.virtual is not None
    noise = inputs.virtual - recorded[:, None]  # (N, M, K, A)
    assert len(set(noise.flatten().tolist())) > 0.99 * noise.numel()
    assert float(noise.std()) == pytest.approx(0.1, abs=0.015)
    assert float(noise.mean((0, 2, 3)).abs().max()) < 0.03


def test_all_draws_come_from_the_agents_own_generator() -> None:
    drawn = []
    for seed in (1, 2):
        agent = agent_of()
        torch.manual_seed(seed)
        draws = agent.draw(batch())
        inputs = draws.auxiliary
        assert inputs is not None
        assert inputs.virtual is not None
        action = agent.act(images(0, 2), explore=True)
        means = agent.act(images(0, 2))
        drawn.append([*draws[:4], *inputs.online, *inputs.target, inputs.virtual, torch.sign(action - means)])
    assert all(torch.equal(one, other) for one, other in zip(*drawn, strict=True))


def test_no_target_network_has_a_gradient_or_is_trained() -> None:
    agent = agent_of()
    trained = {id(p) for optimizer in agent.optimizers.values() for g in optimizer.param_groups for p in g["params"]}
    schedule = Schedule(agent.schedules)
    schedule.due = frozenset(("actor",))
    before = [p.clone() for part in (agent.target_critic, agent.momentum) for p in part.parameters()]
    agent.update(batch(), schedule)
    after = [p for part in (agent.target_critic, agent.momentum) for p in part.parameters()]
    assert all(p.grad is None and not p.requires_grad and id(p) not in trained for p in after)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
