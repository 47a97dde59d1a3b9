"""The optimizers' settings."""

from __future__ import annotations

import torch
from torch import nn

from playvirtual.agents.optim import make_adam


def test_adam_has_the_settings_that_it_is_given_and_nothing_else() -> None:
    adam = make_adam([*nn.Linear(3, 2).parameters()], lr=0.3, betas=(0.7, 0.8), eps=0.2, device=torch.device("cpu"))
    (group,) = adam.param_groups
    assert (group["lr"], group["betas"], group["eps"]) == (0.3, (0.7, 0.8), 0.2)
    assert not any(group[extra] for extra in ("weight_decay", "amsgrad", "maximize", "capturable"))
