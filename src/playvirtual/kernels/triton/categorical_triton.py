"""C51's Q-learning, from logits to loss, priority and gradient, by one Triton kernel."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# No `from __future__ import annotations`: torch.library reads the operators' signatures at run time.
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def clamp(x, low, high):
    """As PyTorch's: NaN stays NaN, so that a run sees that its loss is not finite."""
    return tl.clamp(x, low, high, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def expected_values(logits, values, actions, atoms, A, N):
    """The expectation of softmax(logits) for every action, −∞ where there is none; `values` are those of the atoms."""
    inside = (actions < A) & (atoms < N)
    x = tl.load(logits + actions * N + atoms, mask=inside, other=float("-inf"))
    x = tl.where(actions < A, x, 0.0)  # rows that are no action: anything finite
    e = tl.exp(x - tl.max(x, 1)[:, None])
    q = tl.sum(e * values, 1) / tl.sum(e, 1)
    return tl.where(tl.max(actions, 1) < A, q, float("-inf"))


@triton.jit
def q_learning_kernel(logits, choosing, valuing, taken, returns, discounts, support,
                      losses, priorities, q, gradients, A, N, AS: tl.constexpr, NS: tl.constexpr):  # fmt: skip
    """One sample: AS ≥ A actions and NS ≥ N atoms, powers of two."""
    b = tl.program_id(0).to(tl.int64)
    actions, atoms = tl.arange(0, AS)[:, None], tl.arange(0, NS)[None, :]
    n = tl.arange(0, NS)
    real = n < N
    values = tl.load(support + n, mask=real, other=0.0)
    tl.store(q + b, tl.max(expected_values(logits + b * A * N, values[None, :], actions, atoms, A, N), 0))
    best = tl.argmax(expected_values(choosing + b * A * N, values[None, :], actions, atoms, A, N), 0)
    best = tl.minimum(best, A - 1)  # where all values are NaN, what is no action may seem the best

    x = tl.load(valuing + (b * A + best) * N + n, mask=real, other=float("-inf"))
    p = tl.exp(x - tl.max(x, 0))
    p = p / tl.sum(p, 0)
    low, high = tl.load(support), tl.load(support + N - 1)
    moved = tl.load(returns + b) + tl.load(discounts + b) * values
    moved = clamp(moved, low, high)
    # Each moved atom (a column) shares its mass between its two neighbors on the support (rows).
    share = clamp(1.0 - tl.abs(moved[None, :] - values[:, None]) / ((high - low) / (N - 1)), 0.0, 1.0)
    target = tl.where(real, tl.sum(share * p[None, :], 1), 0.0)

    x = tl.load(logits + (b * A + tl.load(taken + b)) * N + n, mask=real, other=float("-inf"))
    x = x - tl.max(x, 0)
    e = tl.exp(x)
    total = tl.sum(e, 0)
    log_p = tl.where(real, x - tl.log(total), 0.0)
    tl.store(losses + b, -tl.sum(target * log_p, 0))
    clamped = clamp(target, 1e-6, 1.0)
    kl = tl.sum(tl.where(real, clamped * (tl.log(clamped) - log_p), 0.0), 0)
    tl.store(priorities + b, clamp(kl, 1e-6, 1e6))
    tl.store(gradients + b * N + n, e / total * tl.sum(target, 0) - target, mask=real)


@torch.library.custom_op("playvirtual::q_learning", mutates_args=())
def q_learning_op(
    logits: Tensor,  # (B, |A|, atoms) float32, as the next two
    choosing: Tensor,
    valuing: Tensor,
    actions: Tensor,  # (B,) int64
    returns: Tensor,  # (B,) float32
    discounts: Tensor,  # (B,) float32
    support: Tensor,  # (atoms,) float32
) -> list[Tensor]:
    """[loss (B,), KL divergence (B,), largest expected value (B,), dL/d logits of the actions taken (B, atoms)]."""
    B, A, N = logits.shape
    found = _outputs(logits)
    inputs = (logits, choosing, valuing, actions, returns, discounts, support)
    power = triton.next_power_of_2
    q_learning_kernel[(B,)](*(x.contiguous() for x in inputs), *found, A, N, AS=power(A), NS=power(N))
    return found


def _outputs(logits: Tensor) -> list[Tensor]:
    B, _, N = logits.shape
    return [*(logits.new_empty(B) for _ in range(3)), logits.new_empty(B, N)]


@q_learning_op.register_fake
def _(logits, choosing, valuing, actions, returns, discounts, support):
    return _outputs(logits)


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    logits, _, _, actions, *_ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(actions, output[3])
    ctx.num_actions = logits.shape[1]


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    actions, gradients = ctx.saved_tensors
    if grads[0] is None:
        return (None,) * 7
    taken = torch.arange(ctx.num_actions, device=actions.device) == actions[:, None]  # (B, |A|)
    return taken[..., None] * (grads[0][:, None] * gradients)[:, None], *(None,) * 6


q_learning_op.register_autograd(_backward, setup_context=_save)


def q_learning(
    logits: Tensor,
    choosing: Tensor,
    valuing: Tensor,
    actions: Tensor,
    returns: Tensor,
    discounts: Tensor,
    support: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """C51's loss and KL divergence for the actions taken, and the largest expected value of s_t, (B,) each.

    `choosing` logits of s_{t+n} choose the action there, `valuing` ones value it. The loss alone has a gradient.
    """
    loss, kl, q, _ = q_learning_op(logits, choosing, valuing, actions, returns, discounts, support)
    return loss, kl.detach(), q.detach()
