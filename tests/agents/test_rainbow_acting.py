"""How Rainbow acts, what it starts from, its schedules, and what it keeps: beside the plain reading, or by hand."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from playvirtual.agents import rainbow
from playvirtual.agents.rainbow import Rainbow
from tests.agents.plain_rainbow import action_values, encoded, return_logits
from tests.agents.small_rainbow import IMAGE, plain_twin, schedule_at, small_agent, small_batch, small_config


def images(count: int, seed: int = 0) -> Tensor:
    return torch.randint(256, (count, *IMAGE), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def plain_values(agent: Rainbow, observations: Tensor, noisy: bool) -> list[list[float]]:
    """Q(s, ·) of images as they are, by the online network."""
    config = small_config()
    w = {name: p.double() for name, p in plain_twin(agent, config).w.items()}
    noise = {f"head.{name}": value.double() for name, value in agent.head.named_buffers()} if noisy else None
    found = []
    for image in observations:
        z = encoded(w, image.double() / 255, agent.config.strides)
        found.append(action_values(return_logits(w, z, agent.config.atoms, noise), agent.config.v_max))
    return found


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("count", [3, 20])  # few rows and many are computed in different ways
def test_actions_have_the_best_expected_return_with_noise_only_in_exploration(count: int, explore: bool) -> None:
    agent = small_agent(small_config())
    agent.head.resample(agent.generator)
    observations = images(count)
    expected = plain_values(agent, observations, noisy=explore)
    values = agent.action_values(observations, explore)
    torch.testing.assert_close(values, torch.tensor(expected), rtol=1e-4, atol=1e-5)
    assert agent.act(observations, explore).tolist() == [row.index(max(row)) for row in expected]
    other = plain_values(agent, observations, noisy=not explore)
    assert not torch.allclose(values, torch.tensor(other), atol=1e-3)


def test_observations_of_any_leading_shape_are_acted_on_one_by_one() -> None:
    agent = small_agent(small_config())
    observations = images(6)
    flat = agent.action_values(observations)
    many = agent.action_values(observations.view(2, 3, *IMAGE))
    assert many.shape == (2, 3, 3)
    torch.testing.assert_close(many.flatten(0, 1), flat)
    assert agent.act(observations[0]).shape == ()
    torch.testing.assert_close(agent.action_values(observations[0]), flat[0])


def test_the_policy_that_samplers_see_is_the_greedy_one_without_noise() -> None:
    agent = small_agent(small_config())
    agent.head.resample(agent.generator)
    for noise in agent.head.buffers():
        noise.mul_(100)
    observations = images(20)
    policy = agent.objective.policy
    assert policy is not None
    assert torch.equal(policy(agent.encode(observations)), agent.act(observations))
    noisy = agent.act(observations, explore=True)
    assert not torch.equal(noisy, agent.act(observations))


def test_expected_returns_of_known_distributions() -> None:
    agent = small_agent(small_config(atoms=3, v_max=2.0))  # returns −2, 0, 2
    p = torch.tensor([[[0.25, 0.5, 0.25], [0.1, 0.2, 0.7], [1 / 3, 1 / 3, 1 / 3]]])
    assert agent.q_values(p.log()).tolist()[0] == pytest.approx([0.0, 1.2, 0.0], abs=1e-6)
    assert agent.q_values(p.log() + 5.0).tolist()[0] == pytest.approx([0.0, 1.2, 0.0], abs=1e-6)


def untouched(**options: Any) -> Rainbow:
    """As a run begins."""
    config = small_config(**options)
    torch.manual_seed(0)
    return Rainbow(config, IMAGE, rainbow.DiscreteActions(3))


def test_noisy_layers_start_with_sigma_zero_over_the_root_of_their_inputs() -> None:
    """The paper of noisy networks: μ ~ U(±1/√p), σ = σ₀/√p for p inputs; a bias' σ is σ₀ over √outputs here."""
    agent = untouched(noisy_sigma=0.3, hidden=50)
    inputs = agent.encoder.size
    layer = agent.head.value.hidden
    assert layer.weight_mu.shape == (50, inputs)
    assert layer.weight_sigma.unique().tolist() == pytest.approx([0.3 / math.sqrt(inputs)])
    assert layer.bias_sigma.unique().tolist() == pytest.approx([0.3 / math.sqrt(50)])
    bound = 1 / math.sqrt(inputs)
    for mu in (layer.weight_mu, layer.bias_mu):
        assert 0.8 * bound < float(mu.detach().abs().max()) <= bound
    assert float(layer.weight_mu.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    out = agent.head.advantage.out
    assert out.weight_sigma.unique().tolist() == pytest.approx([0.3 / math.sqrt(50)])
    assert out.bias_sigma.unique().tolist() == pytest.approx([0.3 / math.sqrt(3 * 7)])
    assert not agent.head.atom_bias.any()


def test_noise_is_the_outer_product_of_signed_roots_of_gaussians() -> None:
    """ε_w = f(ε_out) f(ε_in)ᵀ and ε_b = f(ε_out) with f(x) = sign(x)·√|x|, as a layer with σ = 1 and μ = 0 shows."""
    layer = untouched(hidden=400).head.value.hidden
    for p, value in ((layer.weight_mu, 0), (layer.bias_mu, 0), (layer.weight_sigma, 1), (layer.bias_sigma, 1)):
        torch.nn.init.constant_(p, value)
    layer.resample(torch.Generator().manual_seed(0))
    weight, bias = (value.detach() for value in layer.weights())
    assert torch.linalg.matrix_rank(weight) == 1
    ratio = weight / bias[:, None]  # the same row of f(ε_in) for every output
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))
    gaussian = bias.sign() * bias.square()  # f undone
    assert float(gaussian.mean()) == pytest.approx(0, abs=5 / 20)
    assert float(gaussian.std()) == pytest.approx(1, abs=5 / 28)
    assert float((gaussian.abs() < 0.6745).double().mean()) == pytest.approx(0.5, abs=5 * 0.5 / 20)  # its median


def test_target_networks_start_as_copies() -> None:
    agent = untouched()
    pairs = (agent.encoder, agent.target_encoder), (agent.head, agent.target_head)
    for online, target in pairs:
        for p, q in zip(online.parameters(), target.parameters(), strict=True):
            assert torch.equal(p, q)
            assert p is not q


def test_beta_grows_on_a_line_and_lambda_cyc_on_a_gaussian() -> None:
    agent = untouched(
        priority_beta_start=0.4, priority_beta_end=0.8, priority_beta_steps=200, i_end=100, lambda_cyc_max=0.5
    )
    beta, lambda_cyc = agent.schedules["beta"], agent.schedules["lambda_cyc"]
    assert [beta(step) for step in (0, 50, 100, 200, 1000)] == pytest.approx([0.4, 0.5, 0.6, 0.8, 0.8])
    expected = [0.5 * 0.006737947, 0.5 * 0.060054668, 0.5 * 0.286504797, 0.5, 0.5]  # e^−5, e^−45/16, e^−1.25, 1
    assert [lambda_cyc(step) for step in (0, 25, 50, 100, 1000)] == pytest.approx(expected)
    assert set(agent.schedules) == {"beta", "lambda_cyc"}
    assert untouched(i_end=0, lambda_cyc_max=0.5).schedules["lambda_cyc"](0) == 0.5


def test_batches_are_drawn_as_the_configuration_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rainbow, "PrioritizedSampler", lambda *given, **options: (given, options))
    agent = untouched(batch_size=7, n_step=4, discount=0.97, priority_exponent=0.3)
    replay, generator = object(), torch.Generator()
    given, options = agent.make_sampler(replay, generator)  # type: ignore[arg-type, misc]
    assert given == (replay, generator)
    assert options == {"batch_size": 7, "K": 3, "n_step": 4, "gamma": 0.97, "alpha": 0.3, "largest_first": False}
    _, options = untouched(new_priority="largest").make_sampler(replay, generator)  # type: ignore[arg-type, misc]
    assert options["largest_first"]


def tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else []
    return [found for child in children for found in tensors(child)]


def test_a_state_holds_everything_that_training_changes() -> None:
    """Between two updates of the target network, which then differs from the online one in weights and noise."""
    first, second = small_agent(small_config()), small_agent(small_config(), seed=5)
    for number in range(3):
        first.update(small_batch(first, seed=number), schedule_at(first, 50, number))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for _ in range(2):
        pairs = list(zip(tensors(first.state_dict()), tensors(second.state_dict()), strict=True))
        assert len(pairs) > 100
        assert all(torch.equal(one, other) for one, other in pairs)
        for agent in (first, second):
            assert agent.generator is not None
            agent.generator.manual_seed(9)
            agent.update(small_batch(agent, seed=8), schedule_at(agent, 70, 4))
