"""The whole objective around a foreign encoder: what it is made of, what it trains, and what a forward model learns."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import playvirtual as pv
from playvirtual.method import ConvDynamics, DenseDynamics, action_dependence, cosine_distance

B, K, M, D = 4, 3, 2, 8
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


def encoder() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, D), nn.ReLU())


def loss(f: nn.Module, **changes: Any) -> pv.PlayVirtualLoss:
    return pv.PlayVirtualLoss(f, **{"actions": 3, "latent": D, "K": K, "M": M, **changes})


def batch() -> tuple[Tensor, Tensor]:
    return torch.rand(B, K + 1, 4, 4), torch.randint(3, (B, K))


@pytest.mark.parametrize("augment", [None, lambda images: images], ids=["plain", "augmented"])
def test_losses_are_those_of_the_equations(augment: Any) -> None:
    """Eq. 2 and 4 by loops, with targets of the momentum networks; the step decides the weight of cycles."""
    f = encoder()
    aux = loss(f, augment=augment, i_end=100, lambda_pred=0.5, lambda_cyc_max=2.0)
    for part in (f, aux.virtual.g):  # so that momentum and online networks differ
        for p in part.parameters():
            p.data.add_(0.1 * torch.randn_like(p))
    observations, actions = batch()
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]).float()
    virtual = torch.randint(3, (B, M, K))
    aux.virtual.sampler = lambda seen: virtual
    aux.virtual.sampler.sees_state = False
    h, b, project = aux.virtual.h, aux.virtual.b, aux.virtual.project
    targets = torch.stack([aux.target_projector(aux.target_encoder(o)) for o in observations])  # (B, K+1, D)

    pred, cyc = torch.zeros(B), torch.zeros(B)
    z = z_0 = f(observations[:, 0])
    for k in range(K):
        z = h(z, actions[:, k])
        pred = pred + mask[:, k + 1] * cosine_distance(project(z), targets[:, k + 1])
    for m in range(M):
        z = z_0
        for k in range(K):
            z = h(z, virtual[:, m, k])
        for k in reversed(range(K)):
            z = b(z, virtual[:, m, k])
        cyc = cyc + cosine_distance(project(z), targets[:, 0]) / M

    found = aux.losses(observations, actions, mask)
    torch.testing.assert_close(found["pred"], pred)
    torch.testing.assert_close(found["cyc"], cyc)
    torch.testing.assert_close(aux(observations, actions, mask), 0.5 * pred + 2.0 * cyc)
    halfway = 2.0 * float(np.exp(-5 * 0.5**2))
    torch.testing.assert_close(aux(observations, actions, mask, step=50), 0.5 * pred + halfway * cyc)


def test_encoder_models_and_heads_learn_and_momentum_networks_do_not() -> None:
    f = encoder()
    aux = loss(f)
    aux(*batch()).mean().backward()
    assert all(p.grad is not None for p in f.parameters())
    frozen = {*aux.target_encoder.parameters(), *aux.target_projector.parameters()}
    assert all((p.grad is None) == (p in frozen) for p in aux.parameters())
    assert not {*f.parameters()} & {*aux.parameters()}


def test_momentum_networks_take_tau_of_the_online_ones() -> None:
    f = encoder()
    aux = loss(f, tau=0.25)
    before = copy.deepcopy(aux.target_encoder.state_dict()), copy.deepcopy(aux.target_projector.state_dict())
    for p in (*f.parameters(), *aux.virtual.g.parameters()):
        p.data.add_(1.0)
    aux.update_targets()
    for old, part in zip(before, (aux.target_encoder, aux.target_projector), strict=True):
        for name, value in part.state_dict().items():
            torch.testing.assert_close(value, old[name] + 0.25)


def test_a_given_target_encoder_gives_the_targets_and_stays_the_agents() -> None:
    f, f_m = encoder(), encoder()
    aux = loss(f, target_encoder=f_m)
    kept = copy.deepcopy(f_m.state_dict())
    observations, actions = batch()
    one = aux.losses(observations, actions, generator=torch.Generator().manual_seed(0))
    aux.update_targets()
    assert all(torch.equal(value, kept[name]) for name, value in f_m.state_dict().items())
    for p in f_m.parameters():
        p.data.normal_()
    other = aux.losses(observations, actions, generator=torch.Generator().manual_seed(0))
    assert not any(torch.allclose(one[name], other[name]) for name in one)


def test_augmented_views_differ_between_online_and_target_and_between_trajectories() -> None:
    seen: list[Tensor] = []

    def augment(images: Tensor) -> Tensor:
        views = images + torch.rand(len(images), 1, 1)
        seen.append(views)
        return views

    observations, actions = torch.zeros(B, K + 1, 4, 4), torch.randint(3, (B, K))
    loss(encoder(), augment=augment).losses(observations, actions)
    assert [len(views) for views in seen] == [B, B * (K + M)]
    assert len(torch.cat(seen)[:, 0, 0].unique()) == B + B * (K + M)


def test_models_fit_the_latent_state_and_the_actions() -> None:
    maps = nn.Conv2d(1, 4, 3)
    aux = loss(maps, latent=(4, 2, 2))
    assert isinstance(aux.virtual.h, ConvDynamics)
    assert aux(torch.rand(B, K + 1, 1, 4, 4), torch.randint(3, (B, K))).shape == (B,)
    aux = loss(encoder(), actions=BOX)
    assert isinstance(aux.virtual.h, DenseDynamics)
    assert aux(torch.rand(B, K + 1, 4, 4), torch.rand(B, K, 2)).shape == (B,)


def test_discrete_actions_may_have_the_axis_that_replay_buffers_give_them() -> None:
    aux = loss(encoder(), M=0)
    observations, actions = batch()
    torch.testing.assert_close(aux(observations, actions[..., None].int()), aux(observations, actions))


def test_models_and_heads_of_ones_own_are_used() -> None:
    h, b = DenseDynamics(D, pv.method.DiscreteActions(3), 5), DenseDynamics(D, pv.method.DiscreteActions(3), 6)
    g, q = nn.Linear(D, 7), nn.Linear(7, 7)
    aux = loss(encoder(), forward=h, backward=b, projector=g, predictor=q)
    aux(*batch()).mean().backward()
    assert all(p.grad is not None for part in (h, b, g, q) for p in part.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"K": 0}, r"K: 0 is not allowed; allowed: whole numbers from 1 on"),
        ({"K": "3"}, r"K: '3' is not allowed; allowed: whole numbers from 1 on"),
        ({"tau": "1"}, r"tau: '1' is not allowed; allowed: numbers from 0 to 1"),
        ({"latent": 8.0}, r"latent: 8\.0 is not allowed; allowed: a number of features, or \(C, H, W\)"),
        ({"M": -1}, r"M: -1 is not allowed"),
        ({"tau": 1.5}, r"tau: 1\.5 is not allowed; allowed: numbers from 0 to 1"),
        ({"latent": (4, 4)}, r"latent: \(4, 4\) is not allowed; allowed: a number of features, or \(C, H, W\)"),
        ({"latent": (4, 2, 2), "actions": BOX}, r"latent: \(4, 2, 2\) is not allowed with continuous actions"),
        ({"lambda_pred": -1.0}, r"lambda_pred: -1\.0 is not allowed"),
    ],
)
def test_bad_options_are_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loss(encoder(), **changes)


@pytest.mark.parametrize("name", ["encoder", "forward", "backward", "sampler"])
def test_a_class_or_function_in_the_place_of_an_object_is_refused_in_one_line(name: str) -> None:
    wrong: dict[str, Any] = {"encoder": torch.flatten, "forward": DenseDynamics, "sampler": pv.method.Uniform}
    wrong["backward"] = 3
    given = {"f": encoder(), name if name != "encoder" else "f": wrong[name]}
    with pytest.raises(TypeError, match=rf"^{name}: .* is not allowed; allowed: .*$"):
        loss(**given)


@pytest.mark.parametrize(
    ("model", "found"), [(lambda z, a: z[:, :5], r"shape \(8, 5\)"), (lambda z, a: (z, None), "a tuple")]
)
def test_a_model_that_gives_no_next_state_is_refused_in_one_line(model: Any, found: str) -> None:
    message = rf"^dynamics: a model \(z, a\) -> z returned {found} for z of shape \(8, 8\); allowed: a tensor of that"
    with pytest.raises(ValueError, match=message):
        loss(encoder(), backward=model)(*batch())


@pytest.mark.parametrize("name", ["observations", "actions", "mask"])
def test_arrays_of_numpy_are_refused_in_one_line(name: str) -> None:
    observations, actions = batch()
    given = {"observations": observations, "actions": actions, "mask": torch.ones(B, K + 1)}
    with pytest.raises(TypeError, match=rf"^{name}: a ndarray is not allowed; allowed: a tensor$"):
        loss(encoder())(**{**given, name: given[name].numpy()})


def test_fractions_in_the_place_of_discrete_actions_are_refused() -> None:
    """They were taken for action 0: of a Box in [0, 1) by mistake, every action was."""
    observations, actions = batch()
    for shape in ((B, K), (B, K, 1)):
        with pytest.raises(
            ValueError, match=r"^actions: fractions such as 0\.5 are not allowed; allowed: whole numbers, 0"
        ):
            loss(encoder())(observations, torch.full(shape, 0.5))
    assert loss(encoder())(observations, actions.float()).shape == (B,)


def test_recorded_actions_beyond_their_space_are_refused() -> None:
    observations, _ = batch()
    for bad in (torch.full((B, K), 3), torch.full((B, K), -1)):
        with pytest.raises(ValueError, match=rf"^actions: values from {bad[0, 0]} to {bad[0, 0]} are not allowed"):
            loss(encoder())(observations, bad)
    aux = loss(encoder(), actions=spaces.Box(np.float32([-1, 0]), np.float32([1, 5])))
    inside = torch.tensor([1.0, 5.0]).expand(B, K, 2)
    for bad in (inside + torch.tensor([0.1, 0.0]), inside * torch.nan):
        with pytest.raises(
            ValueError, match=r"^actions: values from .* allowed: \(-1\.0, 0\.0\) to \(1\.0, 5\.0\), the"
        ):
            aux(observations, bad)
    assert aux(observations, inside + 1e-6).shape == (B,)  # rounding is no mistake


def test_targets_that_are_never_moved_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("playvirtual.method.loss.CALLS_BEFORE_WARNING", 3)
    aux, never = loss(encoder()), loss(encoder())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            aux(*batch())
            aux.update_targets()
            with torch.no_grad():
                never(*batch())
            loss(encoder(), tau=0)(*batch())
        never(*batch())
        never(*batch())
        with pytest.raises(UserWarning, match=r"update_targets\(\) was not called in 3 calls of PlayVirtualLoss"):
            never(*batch())
        never(*batch())


def test_sequences_of_other_lengths_are_refused() -> None:
    aux, (observations, actions) = loss(encoder()), batch()
    with pytest.raises(ValueError, match=r"observations: \(4, 3, 4, 4\) is not allowed; allowed: \(B, 4, …\)"):
        aux(observations[:, 1:], actions)
    with pytest.raises(ValueError, match=r"mask: \(4, 3\) is not allowed; allowed: \(4, 4\)"):
        aux(observations, actions, torch.ones(4, 3))
    with pytest.raises(ValueError, match=r"actions: \(4, 2\) is not allowed; allowed: \(4, 3\)"):
        aux(observations, actions[:, 1:])


def test_a_latent_state_of_another_size_than_the_encoders_is_refused() -> None:
    (observations, actions), e = batch(), encoder()
    size = e(observations[:, 0]).shape[1]
    with pytest.raises(
        ValueError, match=rf"latent: \({size + 1},\) is not allowed; allowed: \({size},\), as the encoder"
    ):
        loss(e, latent=size + 1)(observations, actions)


def test_action_dependence_is_the_share_of_the_variance_by_actions() -> None:
    z = torch.randn(4000, 1)  # variance 1; an action of {0, 1, 2} has variance 2/3
    assert action_dependence(lambda z, a: z, z, 3) == pytest.approx(0.0, abs=1e-6)
    assert action_dependence(lambda z, a: a[:, None].float(), z, 3) == pytest.approx(1.0, abs=0.02)
    assert action_dependence(lambda z, a: z + a[:, None], z, 3) == pytest.approx(2 / 5, abs=0.02)


def test_action_dependence_is_a_share_and_leaves_the_models_as_they_are() -> None:
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        assert 0.8 < action_dependence(lambda z, a: a[:, None].float(), torch.zeros(8, 1), 3, draw) <= 1.0
    f = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16))
    aux = pv.PlayVirtualLoss(f, actions=3, latent=(16, 4, 4), K=2, M=2)
    before = {name: value.clone() for module in (f, aux) for name, value in module.state_dict().items()}
    aux.action_dependence(torch.rand(5, 1, 4, 4))
    aux.target_spread(torch.rand(5, 1, 4, 4))
    for name, value in ((name, value) for module in (f, aux) for name, value in module.state_dict().items()):
        assert torch.equal(value, before[name]), name


def test_target_spread_is_that_of_the_projected_targets() -> None:
    heads = {"projector": nn.Identity(), "predictor": nn.Identity()}
    aux = pv.PlayVirtualLoss(nn.Flatten(), actions=3, latent=2, K=2, M=2, **heads)
    assert aux.target_spread(torch.tensor([[5.0, 0.0], [0.0, 2.0]])) == pytest.approx(0.5)
    assert aux.target_spread(torch.tensor([[3.0, 4.0], [0.3, 0.4]])) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_forward_model_depends_on_its_actions_with_prediction_and_forgets_them_without(seed: int) -> None:
    """A walk around a ring of 12 cells, one to the left, none or one to the right, seen by an encoder that is given.

    Cycles alone are closed by models that ignore what is done. Prediction needs to know where a step leads.
    """
    cells = torch.eye(12)

    def trained_dependence(lambda_pred: float) -> float:
        torch.manual_seed(seed)
        f = nn.Linear(12, 16).requires_grad_(False)
        nn.init.normal_(f.weight)
        aux = pv.PlayVirtualLoss(f, actions=3, latent=16, K=2, M=2, lambda_pred=lambda_pred, i_end=0)
        adam = torch.optim.Adam(aux.parameters(), lr=3e-3)
        for _ in range(300):
            start, actions = torch.randint(12, (32, 1)), torch.randint(3, (32, 2))
            states = torch.cat([start, start + (actions - 1).cumsum(1)], 1) % 12
            adam.zero_grad()
            aux(cells[states], actions).mean().backward()
            adam.step()
            aux.update_targets()
        return aux.action_dependence(cells)

    assert trained_dependence(lambda_pred=1.0) > 0.1
    assert trained_dependence(lambda_pred=0.0) < 0.03
