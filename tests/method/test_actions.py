"""Virtual actions stay in their space and follow the stated distribution."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from playvirtual.method import BoxActions, DiscreteActions, action_space


def test_what_people_have_is_understood() -> None:
    assert action_space(4) == DiscreteActions(4)
    assert action_space(spaces.Discrete(3)) == DiscreteActions(3)
    box = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 2], np.float32))
    assert action_space(box) == BoxActions((-1.0, 0.0), (1.0, 2.0))
    assert action_space(np.int64(4)) == DiscreteActions(4)


@pytest.mark.parametrize(
    "space",
    [
        "left",
        0,
        4.0,
        spaces.Discrete(4, start=3),
        spaces.MultiBinary(5),
        spaces.MultiDiscrete([2, 3]),
        spaces.Box(-1.0, 1.0, (2, 2)),
        spaces.Box(-np.inf, np.inf, (2,)),
        spaces.Box(np.float32(0), np.float32(np.inf), (1,)),
    ],
)
def test_what_nothing_can_be_drawn_from_is_refused(space: object) -> None:
    with pytest.raises(TypeError, match=r"^actions: .* is not known; allowed: a number of actions, a discrete space"):
        action_space(space)


def test_uniform_discrete_actions_are_uniform() -> None:
    draws = DiscreteActions(5).uniform((20_000,), torch.Generator().manual_seed(0))
    shares = torch.bincount(draws, minlength=5) / 20_000
    assert (shares - 0.2).abs().max() < 0.015  # five standard deviations


@pytest.mark.parametrize("sigma", [0.0, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("action", [0, 3])
def test_perturbed_discrete_actions_are_replaced_with_probability_sigma(action: int, sigma: float) -> None:
    """By a uniform draw from all n = 4 actions, which may be the same action again."""
    actions = torch.full((20_000,), action)
    drawn = DiscreteActions(4).perturb(actions, sigma, torch.Generator().manual_seed(0))
    shares = (torch.bincount(drawn, minlength=4) / 20_000).tolist()
    for other, share in enumerate(shares):
        expected = sigma / 4 + (1 - sigma) * (other == action)
        assert share == pytest.approx(expected, abs=5 * (expected * (1 - expected) / 20_000) ** 0.5)  # deviations


@given(st.floats(0.0, 3.0), st.integers(0, 1000))
def test_box_actions_stay_in_the_box(sigma: float, seed: int) -> None:
    space = BoxActions((-1.0, 0.0), (1.0, 5.0))
    generator = torch.Generator().manual_seed(seed)
    drawn = space.uniform((50,), generator)
    for actions in (drawn, space.perturb(drawn, sigma, generator)):
        assert actions.shape == (50, 2)
        assert (actions >= torch.tensor(space.low)).all()
        assert (actions <= torch.tensor(space.high)).all()


def test_discrete_actions_are_one_hot_and_vectors_stay_as_they_are() -> None:
    assert DiscreteActions(3).encode(torch.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    vector = torch.tensor([[0.5, -0.5]])
    assert BoxActions((-1.0, -1.0), (1.0, 1.0)).encode(vector) is vector
