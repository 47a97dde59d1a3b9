"""Laws of the continuous agent: what is computed, what is trained by what, what follows what."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from playvirtual.agents.agent import Schedule, load_policy_state_dict, num_trainable_parameters, policy_state_dict
from playvirtual.agents.losses import actor_loss, critic_loss, soft_target, squashed_gaussian, temperature_loss
from playvirtual.agents.networks.sac import Actor, LatentLayer, mlp, orthogonal, outputs
from playvirtual.agents.sac import Sac
from playvirtual.config.build import build
from playvirtual.config.hyperparameters import METHODS
from playvirtual.config.schema import SacConfig
from playvirtual.errors import InputError
from playvirtual.method import BoxActions
from playvirtual.replay.augmentation import RandomCrop
from playvirtual.replay.batches import SacBatch, SequenceBatch, TransitionBatch
from playvirtual.replay.buffer import ReplayBuffer
from tests.agents.every_loss import every_loss

B, A, SIZE = 8, 2, 12
BOX = BoxActions((-1.0,) * A, (1.0,) * A)


def small(method: str = "playvirtual", *, bf16: bool = False, **options: Any) -> Sac:
    """The agent of toy/reach, with weights and draws that depend on nothing but the arguments."""
    config = build("toy/reach", method=method, **options)
    assert isinstance(config.agent, SacConfig)
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(4)
    return Sac(config, (3, SIZE, SIZE), BOX, generator=generator, bf16=bf16)


def K_of(agent: Sac) -> int:
    return agent.objective.K if agent.objective is not None else 0


def experience(K: int, seed: int = 0) -> SacBatch:
    generator = torch.Generator().manual_seed(seed)

    def pixels(*shape: int) -> Tensor:
        return torch.randint(256, (*shape, 3, SIZE, SIZE), generator=generator).to(torch.uint8)

    def uniform(*shape: int) -> Tensor:
        return 2 * torch.rand(shape, generator=generator) - 1

    transitions = TransitionBatch(
        torch.arange(B), pixels(B), uniform(B, A), uniform(B), torch.full((B,), 0.9), pixels(B)
    )
    sequences = None
    if K:
        sequences = SequenceBatch(torch.arange(B), pixels(B, K + 1), uniform(B, K, A), torch.ones(B, K + 1))
    return SacBatch(transitions, sequences)


EVERYTHING = ("actor", "critic_target", "momentum")


def schedule(*due: str) -> Schedule:
    """λ_cyc at its maximum; by default everything is due."""
    s = Schedule({"lambda_cyc": lambda step: 1.0})
    s.due = frozenset(due or EVERYTHING)
    return s


def weights_of(agent: Sac) -> dict[str, Tensor]:
    """Every weight as network.name, each once."""
    names = ("actor", "critic", "target_critic", "temperature", "auxiliary", "momentum")
    return {f"{n}.{k}": v.clone() for n in names for k, v in getattr(agent, n).state_dict().items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """The first two parts of the names of all weights that differ."""
    assert before.keys() == after.keys()
    return {".".join(k.split(".")[:2]) for k in before if not torch.equal(before[k], after[k])}


def reached(loss: Tensor, module: nn.Module) -> bool:
    """Whether the loss has a gradient other than 0 in the module."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    return any(g is not None and bool((g != 0).any()) for g in gradients)


# Losses


def test_log_probability_is_that_of_a_squashed_gaussian() -> None:
    mean, log_std = torch.linspace(-1, 1, 12).view(6, 2), torch.linspace(-2, -0.5, 12).view(6, 2)
    noise = torch.linspace(-1.5, 1.5, 12).view(6, 2).flip(0)
    action, log_prob = squashed_gaussian(mean, log_std, noise)
    law = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
    torch.testing.assert_close(action, torch.tanh(mean + log_std.exp() * noise))
    torch.testing.assert_close(log_prob, law.log_prob(action).sum(1), rtol=1e-4, atol=1e-4)


def test_log_probability_stays_finite_where_tanh_rounds_to_one() -> None:
    mean = torch.full((1, 1), 30.0, requires_grad=True)
    action, log_prob = squashed_gaussian(mean, torch.zeros(1, 1), torch.zeros(1, 1))
    log_prob.sum().backward()
    assert action.item() == 1.0
    assert torch.isfinite(log_prob).all()
    assert mean.grad is not None
    assert torch.isfinite(mean.grad).all()


def test_targets_and_losses_by_hand() -> None:
    one = torch.ones(2)
    alpha, log_prob = torch.tensor(0.1), -one
    target = soft_target(one, torch.tensor([0.5, 0.0]), 3 * one, 2 * one, log_prob, alpha)
    torch.testing.assert_close(target, torch.tensor([1 + 0.5 * (2 + 0.1), 1.0]))  # the second is terminal
    torch.testing.assert_close(critic_loss(3 * one, 2 * one, one), 5 * one)  # 2² + 1²
    torch.testing.assert_close(actor_loss(3 * one, 2 * one, log_prob, alpha), -2.1 * one)  # 0.1·(−1) − 2
    # Entropy 1, target −2: α must fall, so the loss grows with α.
    torch.testing.assert_close(temperature_loss(alpha.log(), log_prob, -2.0), 0.3 * one)


def test_log_std_lies_between_its_limits() -> None:
    actor = Actor(4, 3, 1, 8, (-10.0, 2.0), tanh=False)
    last = actor.mlp[-1]
    for bias, expected in ((-100.0, -10.0), (0.0, -4.0), (100.0, 2.0)):
        with torch.no_grad():
            last.weight.zero_()
            last.bias.fill_(bias)
        torch.testing.assert_close(actor(torch.ones(1, 4, 1, 1))[1], torch.tensor([[expected]]))


def test_initial_weights_are_orthogonal() -> None:
    linear, conv = nn.Linear(20, 6), nn.Conv2d(4, 8, 3)
    orthogonal(linear)
    orthogonal(conv)
    torch.testing.assert_close(linear.weight @ linear.weight.T, torch.eye(6), atol=1e-5, rtol=0)
    center = conv.weight[:, :, 1, 1]
    torch.testing.assert_close(center.T @ center, 2 * torch.eye(4), atol=1e-5, rtol=0)  # gain √2 for ReLU
    assert conv.weight.count_nonzero() == center.count_nonzero()
    assert not linear.bias.any()
    assert not conv.bias.any()


def test_actor_and_critic_begin_with_them_and_the_auxiliary_networks_do_not() -> None:
    agent = small()
    layers = [m for part in (agent.actor, agent.critic) for m in part.modules() if isinstance(m, nn.Linear)]
    assert len(layers) == 3 + 3 + 3 + 2  # of the actor, of each Q, and the two latent layers
    for layer in layers:
        wide = layer.weight if layer.out_features <= layer.in_features else layer.weight.T
        torch.testing.assert_close(wide @ wide.T, torch.eye(len(wide)), atol=1e-4, rtol=0)
        assert not layer.bias.any()
    for conv in agent.encoder.convs.layers:
        assert conv.weight.count_nonzero() == conv.weight[:, :, 1, 1].count_nonzero() > 0
    fc = agent.auxiliary["forward_dynamics"].fc1
    assert fc.bias.any()


# Augmentation and acting


def test_rl_losses_are_cropped_and_the_auxiliary_ones_also_change_in_intensity() -> None:
    agent = small(crop_size=10)
    assert agent.objective is not None
    augment = agent.objective.augment
    assert isinstance(augment, RandomCrop)
    assert (agent.augment.scale, augment.scale) == (0.0, 0.05)
    draws = agent.draw(experience(K_of(agent)))
    assert not torch.equal(draws.offsets, draws.next_offsets)
    assert draws.auxiliary is not None
    offsets, noise = draws.auxiliary.target
    assert len(offsets) == len(noise) == B * (4 + 4)  # K future states and M views of s_t, each on its own


def test_greedy_actions_repeat_exploring_ones_vary_and_both_need_the_policy_alone() -> None:
    agent = small()
    frames = experience(1).transitions.observations
    mean = agent.act(frames)
    assert mean.shape == (B, A)
    assert (mean.abs() <= 1).all()
    assert torch.equal(agent.act(frames), mean)
    torch.testing.assert_close(agent.act(frames[0].numpy()), mean[0])
    assert torch.equal(agent.act(frames.unflatten(0, (1, -1))), mean[None])
    assert not torch.equal(agent.act(frames, explore=True), agent.act(frames, explore=True))
    other = small(learning_rate=0.5)
    other.update(experience(4), schedule())
    load_policy_state_dict(other, policy_state_dict(agent))
    assert torch.equal(other.act(frames), mean)


# What is trained by what


def test_the_actor_does_not_train_the_encoder() -> None:
    agent = small()
    batch = experience(K_of(agent))
    losses = agent.actor_losses(batch.transitions, agent.draw(batch))
    assert reached(losses["actor"].mean(), agent.actor)
    assert not reached(losses["actor"].mean(), agent.encoder)
    before = weights_of(agent)
    agent.update_actor(batch.transitions, agent.draw(batch))
    assert changed(before, weights_of(agent)) == {"actor.latent", "actor.mlp", "temperature.log_alpha"}


def test_the_critic_trains_encoder_and_both_q() -> None:
    agent = small()
    batch, before = experience(K_of(agent)), weights_of(agent)
    agent.update_critic(batch.transitions, agent.draw(batch))
    assert changed(before, weights_of(agent)) == {"critic.encoder", "critic.q1", "critic.q2"}


METHODS_WITH_A_CYCLE = [m for m in METHODS if m not in ("rl", "spr", "spr-bdm-prediction")]


@pytest.mark.parametrize("method", METHODS_WITH_A_CYCLE)
def test_what_the_auxiliary_losses_train(method: str) -> None:
    agent = small(method)
    batch = experience(K_of(agent))
    draws, aux = agent.draw(batch), agent.auxiliary
    assert batch.sequences is not None
    assert draws.auxiliary is not None
    losses = agent.auxiliary_losses(batch.sequences, draws.auxiliary)
    pred, cyc = losses["pred"].mean(), losses["cyc"].mean()
    assert all(reached(pred, m) for m in (agent.encoder, aux["forward_dynamics"], aux["projector"], aux["predictor"]))
    assert not reached(pred, aux["backward_dynamics"])
    assert reached(cyc, agent.encoder)
    assert reached(cyc, aux["backward_dynamics"])
    assert reached(cyc, aux["forward_dynamics"]) == (method != "playvirtual-nd")
    assert reached(cyc, aux["projector"]) == reached(cyc, aux["predictor"]) == (method != "playvirtual-latent")
    before = weights_of(agent)
    agent.update_auxiliary(batch.sequences, draws.auxiliary, torch.ones(()))
    parts = {f"auxiliary.{part}" for part in ("forward_dynamics", "backward_dynamics", "projector", "predictor")}
    assert changed(before, weights_of(agent)) == parts | {"critic.encoder"}


def test_backward_prediction_trains_the_backward_model_and_not_the_forward_one() -> None:
    agent = small("spr-bdm-prediction")
    batch = experience(K_of(agent))
    draws, aux = agent.draw(batch), agent.auxiliary
    assert batch.sequences is not None
    assert draws.auxiliary is not None
    losses = agent.auxiliary_losses(batch.sequences, draws.auxiliary)
    assert list(losses) == ["pred", "backward_pred", "cyc", "target_spread"]
    assert not losses["cyc"].any()
    back = losses["backward_pred"].mean()
    parts = ("backward_dynamics", "projector", "predictor")
    assert all(reached(back, module) for module in (agent.encoder, *(aux[name] for name in parts)))
    assert not reached(back, aux["forward_dynamics"])
    metrics = agent.update_auxiliary(batch.sequences, draws.auxiliary, torch.ones(()))
    torch.testing.assert_close(metrics["loss_backward_pred"], back)
    torch.testing.assert_close(metrics["loss_auxiliary"], losses["pred"].mean() + back)  # λ_pred is 1


@pytest.mark.parametrize(("method", "same"), [("rl", {"K": 0}), ("spr", {"M": 0})])
def test_no_prediction_is_rl_and_no_trajectories_are_spr(method: str, same: dict[str, int]) -> None:
    one, other = small(method), small("playvirtual", **same)
    batch = experience(K_of(one))
    for agent in (one, other):
        agent.update(batch, schedule())
    assert not changed(weights_of(one), weights_of(other))
    assert (one.objective is None) == (method == "rl")
    assert "backward_dynamics" not in one.auxiliary


def test_masked_sequences_train_nothing() -> None:
    agent = small()
    batch = experience(K_of(agent))
    assert batch.sequences is not None
    draws = agent.draw(batch).auxiliary
    assert draws is not None
    losses = agent.auxiliary_losses(batch.sequences._replace(mask=torch.zeros(B, K_of(agent) + 1)), draws)
    assert not losses["pred"].any()
    assert not losses["cyc"].any()


@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_how_far_an_auxiliary_update_moves_the_encoder(preset: str) -> None:
    twice = preset == "reference"
    agent = small(separate_encoder_optimizer=twice, auxiliary_learning_rate=1e-3)
    batch, before = experience(K_of(agent)), agent.encoder.latent.fc.weight.detach().clone()
    draws = agent.draw(batch).auxiliary
    assert batch.sequences is not None
    assert draws is not None
    agent.update_auxiliary(batch.sequences, draws, torch.ones(()))
    step = (agent.encoder.latent.fc.weight - before).abs().max()  # Adam's first step is one learning rate long
    torch.testing.assert_close(step, torch.tensor(2e-3 if twice else 1e-3), rtol=1e-2, atol=0)


def test_low_precision_trains_every_layer_and_keeps_losses_whole() -> None:
    agent = small(bf16=True)
    batch, before = experience(K_of(agent)), weights_of(agent)
    with torch.autocast("cpu", torch.bfloat16):
        losses = every_loss(agent, batch, agent.draw(batch))
    assert {name: loss.dtype for name, loss in losses.items()} == dict.fromkeys(losses, torch.float32)
    agent.update(batch, schedule())
    assert not torch.equal(
        before["critic.encoder.convs.layers.0.weight"], agent.encoder.convs.layers[0].weight.detach()
    )


# Targets


def test_targets_follow_by_the_rates_of_their_options() -> None:
    config = build("dmc/walker-walk")
    agent = small(**{name: getattr(config.agent, name) for name in ("q_tau", "encoder_tau", "momentum_tau")})
    aux = agent.auxiliary
    targets = {
        agent.target_critic.q1: 0.01,
        agent.target_critic.q2: 0.01,
        agent.target_critic.encoder: 0.05,
        agent.momentum["encoder"]: 0.05,
        agent.momentum["projector"]: 0.05,
    }
    with torch.no_grad():
        for p in [*agent.critic.parameters(), *aux["projector"].parameters()]:
            p.fill_(1.0)
        for target in targets:
            for p in target.parameters():
                p.zero_()
    agent.update_critic_target()
    agent.update_momentum()
    for target, rate in targets.items():
        for p in target.parameters():
            torch.testing.assert_close(p, torch.full_like(p, rate))


@pytest.mark.parametrize(("momentum_period", "moves"), [(1, True), (2, False)])
def test_what_every_second_update_leaves_out(momentum_period: int, moves: bool) -> None:
    agent = small(momentum_period=momentum_period)
    assert agent.update_pattern.period == 2
    learned = {"critic.encoder", "critic.q1", "critic.q2", "auxiliary.forward_dynamics", "auxiliary.backward_dynamics"}
    every_second = {"actor.latent", "actor.mlp", "temperature.log_alpha", "target_critic.q1", "target_critic.encoder"}
    followers = {"momentum.encoder", "momentum.projector"}
    batch, before = experience(K_of(agent)), weights_of(agent)
    agent.update(batch, schedule(*agent.update_pattern.due(0)))
    first = weights_of(agent)
    assert learned | every_second | followers <= changed(before, first)
    agent.update(batch, schedule(*agent.update_pattern.due(1), "nothing else"))
    odd = changed(first, weights_of(agent))
    assert learned <= odd
    assert not every_second & odd
    assert followers & odd == (followers if moves else set())


@given(periods=st.tuples(*[st.integers(1, 7)] * 3), updates=st.lists(st.integers(0, 10**6), min_size=1, max_size=9))
@settings(max_examples=25)
def test_an_update_has_a_kind_that_does_the_same_of_few(periods: tuple[int, ...], updates: list[int]) -> None:
    agent = small(**dict(zip(("actor_period", "critic_target_period", "momentum_period"), periods, strict=True)))
    for update in updates:
        kind = agent.update_pattern.kind(update)
        assert [kind % period == 0 for period in periods] == [update % period == 0 for period in periods]
        assert agent.update_pattern.kind(kind) == kind
    assert len({agent.update_pattern.kind(update) for update in range(agent.update_pattern.period)}) <= 8


def test_where_the_momentum_projection_starts() -> None:
    for choice, same in (("copy", True), ("independent", False)):
        agent = small(target_projection=choice)
        weights = [part["projector"].fc1.weight for part in (agent.auxiliary, agent.momentum)]
        assert torch.equal(*weights) == same


def test_where_targets_and_temperature_start() -> None:
    agent = small(initial_temperature=0.3)
    torch.testing.assert_close(agent.log_alpha.exp(), torch.tensor(0.3))
    for target, online in ((agent.target_critic, agent.critic), (agent.momentum["encoder"], agent.encoder)):
        for one, other in zip(target.parameters(), online.parameters(), strict=True):
            assert torch.equal(one, other)
            assert one is not other


@pytest.mark.parametrize("box", [BoxActions((-1.0, -1.0), (1.0, 2.0)), BoxActions((-2.0, -1.0), (1.0, 1.0))])
def test_actions_of_another_range_are_refused(box: BoxActions) -> None:
    with pytest.raises(
        InputError, match=r"the actions of 'toy/reach' lie between .*; allowed: −1 and 1 in every dimens"
    ):
        Sac(build("toy/reach"), (3, SIZE, SIZE), box)


def test_the_parts_by_name() -> None:
    agent = small()
    parts = agent.parts
    assert parts["encoder"] is agent.critic.encoder
    assert parts["convolutions"] is agent.critic.encoder.convs
    assert parts["target_encoder"] is agent.target_critic.encoder
    assert parts["target_critic"] is agent.target_critic
    assert parts["momentum_encoder"] is agent.momentum["encoder"]
    assert parts["momentum_projector"] is agent.momentum["projector"]
    assert {"actor", "critic", "temperature", "forward_dynamics", "backward_dynamics"} <= parts.keys()
    assert {"projector", "predictor"} <= parts.keys()


@pytest.mark.parametrize("method", ["rl", "playvirtual"])
def test_the_batches_that_it_asks_for(method: str) -> None:
    agent = small(method, batch_size=5, auxiliary_batch_size=7, discount=0.8, crop_size=9)
    replay = ReplayBuffer(60, (3, SIZE, SIZE), 1, A)
    for i in range(50):
        replay.add_obs(np.full((3, SIZE, SIZE), i, np.uint8))
        replay.add_transition(np.full(A, i / 50, np.float32), float(i), terminated=False)
    batch = agent.make_sampler(replay, torch.Generator().manual_seed(0)).sample({})
    assert batch.transitions.observations.shape == (5, 3, SIZE, SIZE)
    torch.testing.assert_close(batch.transitions.discounts, torch.full((5,), 0.8))
    if method == "rl":
        assert batch.sequences is None
        return
    assert batch.sequences is not None
    assert batch.sequences.observations.shape == (7, 4 + 1, 3, SIZE, SIZE)
    assert batch.sequences.actions.shape == (7, 4, A)
    assert batch.sequences.mask.all()


def test_low_precision_is_used_where_it_is_asked_for() -> None:
    losses = []
    for bf16 in (False, True):
        agent = small(bf16=bf16)
        losses.append(agent.update(experience(K_of(agent)), schedule()).metrics)
    for name in ("loss_critic", "loss_actor", "loss_pred"):
        assert losses[0][name] != losses[1][name]
        torch.testing.assert_close(losses[0][name], losses[1][name], rtol=0.05, atol=0.05)


# The whole


def test_update_goes_on_from_a_saved_state() -> None:
    one, other = small(), small(learning_rate=0.01)
    for phase in (0, 1):
        one.update(experience(4, seed=phase), schedule(*one.update_pattern.due(phase), "nothing else"))
    other.load_state_dict(deepcopy(one.state_dict()))
    for agent in (one, other):
        for group in agent.optimizers["critic"].param_groups + agent.optimizers["actor"].param_groups:
            assert group["lr"] == 1e-3  # the optimizers' state has come along
        agent.generator = torch.Generator().manual_seed(9)
        agent.update(experience(4, seed=7), schedule())
    assert not changed(weights_of(one), weights_of(other))


REWARD_PREDICTOR = (50 * 512 + 512) + 2 * 512 + (512 + 1)  # the released code's, of loss weight 0; not built here


@pytest.mark.parametrize(("method", "expected"), [("spr", 25_811_673), ("playvirtual", 25_864_971)])
def test_sizes_of_the_released_code(method: str, expected: int) -> None:
    """Counted as there: shared tensors each time they appear, target networks and a reward predictor included."""
    config = build("dmc/cartpole-swingup", method=method, preset="reference")
    assert isinstance(config.agent, SacConfig)
    agent = Sac(config, (9, 100, 100), BoxActions((-1.0,), (1.0,)))
    aux = agent.auxiliary

    dynamics = [module for name, module in aux.items() if name.endswith("dynamics")]

    def size(*modules: nn.Module | None) -> int:
        return sum(p.numel() for m in modules if m is not None for p in m.parameters())

    heads = size(aux["projector"], aux["predictor"], agent.momentum["projector"])
    auxiliary = size(agent.encoder, agent.momentum["encoder"], *dynamics) + heads + REWARD_PREDICTOR
    actor = size(agent.encoder.convs, agent.actor)
    assert actor + size(agent.critic, agent.target_critic) + auxiliary == expected
    distinct = size(agent.actor, agent.critic, *dynamics, aux["projector"], aux["predictor"]) + 1
    assert num_trainable_parameters(agent) == distinct  # α is the one more
    assert agent.released_parameter_count() == expected


def test_a_batch_is_encoded_like_its_pictures_one_by_one() -> None:
    torch.manual_seed(0)
    latent = LatentLayer(4 * 3 * 3, 5, tanh=True)
    features = torch.rand(12, 4, 3, 3)
    torch.testing.assert_close(latent(features), torch.cat([latent(one[None]) for one in features]))


def test_large_values_are_told_apart_under_autocast() -> None:
    """Around 100 bfloat16 has steps of a half: temporal differences are smaller."""
    torch.manual_seed(0)
    layers = mlp(8, 256, 1)
    x = torch.rand(64, 8)
    with torch.no_grad():
        layers[-1].bias += 100.0
        exact = layers(x)
        with torch.autocast("cpu", torch.bfloat16):
            rounded, found = layers(x), outputs(layers, x)
    assert found.dtype == torch.float32
    assert float((rounded - exact).abs().max()) > 0.05
    assert float((found - exact).abs().max()) < 0.005
