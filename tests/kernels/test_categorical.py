"""The kernel for C51's Q-learning against PyTorch."""

import pytest
import torch
from torch import Tensor

from playvirtual import kernels
from playvirtual.agents.losses import QLearning, categorical_q_learning
from tests.interpreted import interpreted, needs_triton
from tests.kernels.errors import worst


def inputs(B: int, A: int, N: int, spread: float) -> tuple[Tensor, ...]:
    """Logits at s_t and twice at s_{t+n}, actions, returns, discounts and the support, in float64."""
    g = torch.Generator().manual_seed(A)
    logits = [spread * torch.randn(B, A, N, generator=g, dtype=torch.float64) for _ in range(3)]
    for network in logits[:2]:
        network[0, :, 0] += 9.0  # all expected values are negative: no action that does not exist is better
    actions = torch.randint(A, (B,), generator=g)
    returns = 8.0 * torch.randn(B, generator=g, dtype=torch.float64)
    returns[0] = 1000.0  # all mass at the upper end of the support
    discounts = torch.rand(B, generator=g, dtype=torch.float64)
    discounts[-1] = 0.0  # the episode has ended
    return *logits, actions, returns, discounts, torch.linspace(-10.0, 10.0, N, dtype=torch.float64)


def differences(device: str) -> list[float]:
    """Largest differences of loss, priority, value and gradient to those of PyTorch in float64."""
    from playvirtual.kernels.triton import categorical_triton

    errors = []
    for B, A, N, spread in [(5, 6, 51, 1.0), (3, 18, 51, 5.0), (4, 3, 7, 2.0), (2, 1, 2, 1.0), (3, 4, 64, 30.0)]:
        exact = inputs(B, A, N, spread)
        given = [x.to(device, torch.float32 if x.is_floating_point() else None) for x in exact]
        results = []
        for function, (logits, *rest) in ((categorical_q_learning, exact), (categorical_triton.q_learning, given)):
            logits = logits.requires_grad_()
            found = QLearning(*function(logits, *rest))
            assert not found.priority.requires_grad
            assert not found.q.requires_grad
            (found.loss * torch.arange(1.0, B + 1, device=logits.device)).sum().backward()
            results.append([x.detach().cpu().double() for x in (*found, logits.grad)])
        scale = [1.0 + expected.abs().max() for expected in results[0]]
        pairs = zip(*results, scale, strict=True)
        errors += [float((got - expected).abs().max() / size) for expected, got, size in pairs]
    return errors


def hidden_nans(device: str) -> int:
    """How often a NaN among the inputs of one sample leaves that sample a loss or priority, or takes another's."""
    from playvirtual.kernels.triton import categorical_triton

    wrong = 0
    for place in (0, 2, 4):  # logits, those that value, returns
        given = [x.to(device, torch.float32 if x.is_floating_point() else None) for x in inputs(3, 3, 7, 1.0)]
        given[place][1] = float("nan")
        found = QLearning(*categorical_triton.q_learning(*given))
        for value in (found.loss, found.priority):
            wrong += value.isnan().tolist() != [False, True, False]
    given[1][:] = float("nan")  # nothing says which action is the best
    categorical_triton.q_learning(*given)
    return wrong


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(("errors", "most"), [("worst(differences('cpu'))", 1e-5), ("hidden_nans('cpu')", 0)])
def test_the_interpreted_kernel_learns_what_pytorch_learns(errors: str, most: float) -> None:
    assert interpreted("tests.kernels.test_categorical", errors) <= most


@pytest.mark.skipif(not kernels.AVAILABLE, reason="no GPU with Triton")
def test_the_compiled_kernel_learns_what_pytorch_learns() -> None:
    assert worst(differences("cuda")) < 1e-5
    assert hidden_nans("cuda") == 0
