"""The optimizers' settings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from playvirtual.agents.optim import load_adam, make_adam


def test_adam_has_the_settings_that_it_is_given_and_nothing_else() -> None:
    adam = make_adam([*nn.Linear(3, 2).parameters()], lr=0.3, betas=(0.7, 0.8), eps=0.2, device=torch.device("cpu"))
    (group,) = adam.param_groups
    assert (group["lr"], group["betas"], group["eps"]) == (0.3, (0.7, 0.8), 0.2)
    assert not any(group[extra] for extra in ("weight_decay", "amsgrad", "maximize", "capturable"))


def stepped(steps: int) -> tuple[nn.Linear, torch.optim.Adam]:
    """A layer and its Adam after so many steps."""
    torch.manual_seed(steps)
    layer = nn.Linear(3, 2)
    adam = make_adam([*layer.parameters()], lr=0.1, betas=(0.9, 0.99), eps=1e-3, device=torch.device("cpu"))
    for _ in range(steps):
        step(layer, adam)
    return layer, adam


def step(layer: nn.Linear, adam: torch.optim.Adam) -> None:
    adam.zero_grad(set_to_none=True)
    layer(torch.ones(1, 3)).square().sum().backward()
    adam.step()


def tensors(adam: torch.optim.Adam) -> list[Tensor]:
    return [t for state in adam.state.values() for t in state.values()]


@pytest.mark.parametrize("steps", [2, 0])  # of the Adam whose state is loaded; before its first one it has none
def test_a_state_is_loaded_in_place_and_goes_on_as_the_other(steps: int) -> None:
    """A captured update reads and writes moments and counts where they lie."""
    (layer, adam), (other, source) = stepped(3), stepped(steps)
    before = tensors(adam)
    layer.load_state_dict(other.state_dict())
    load_adam(adam, source.state_dict())
    assert all(one is now for one, now in zip(before, tensors(adam), strict=True))
    for each in ((layer, adam), (other, source)):
        step(*each)
    assert all(torch.equal(one, two) for one, two in zip(layer.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(one, two) for one, two in zip(tensors(adam), tensors(source), strict=True))
