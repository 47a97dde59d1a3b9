"""Adam steps on gradients that are clipped group by group: PyTorch's own, or by Triton a few launches in all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set

import torch
from torch import Tensor, nn

from playvirtual import kernels

if kernels.AVAILABLE:
    from playvirtual.kernels.triton.adam_triton import FusedClippedAdam

ParameterGroups = Mapping[str, Sequence[nn.Parameter]]


@torch.no_grad()
def clip_grad_norm_by_group(groups: ParameterGroups, max_norm: float) -> dict[str, Tensor]:
    """Scales every group's gradients down to a norm of at most `max_norm`, which may be ∞; returns the norms before."""
    gradients = {name: [p.grad for p in parameters if p.grad is not None] for name, parameters in groups.items()}
    sizes = [len(group) for group in gradients.values()]
    squares = torch.stack(torch._foreach_norm([g for group in gradients.values() for g in group])).square()
    norms = torch.stack([group.sum() for group in squares.split(sizes)]).sqrt()  # (groups,)
    if max_norm < math.inf:
        factors = (max_norm / (norms + 1e-6)).clamp_max(1.0)
        for group, factor in zip(gradients.values(), factors.unbind(), strict=True):
            if group:
                torch._foreach_mul_(group, factor)
    return dict(zip(gradients, norms.unbind(), strict=True))


class ClippedAdam:
    """Optimizer steps of an Adam, which owns the state, on gradients whose norms are clipped group by group."""

    def __init__(
        self,
        adam: torch.optim.Adam,
        groups: ParameterGroups,
        max_norm: float,
        copies: Sequence[tuple[nn.Parameter, Tensor]] = (),
    ) -> None:
        """Parameters in no group are not clipped; with an infinite `max_norm` norms are only measured.

        `copies` are parameters and the tensors that a step can make equal to them: those of a target network.
        """
        self.adam, self.groups, self.max_norm, self.copies = adam, groups, max_norm, copies
        self._fused: FusedClippedAdam | None = None

    @property
    def is_fused(self) -> bool:
        """Whether the last step was made by the kernels and the next one can be."""
        return self._fused is not None and self._fused.is_valid()

    @torch.no_grad()
    def step(self, *, copy: bool = False) -> dict[str, Tensor]:
        """Uses the gradients that the parameters have; returns the groups' norms before clipping.

        With `copy` the copies are equal to the parameters afterwards.
        """
        copied: set[int] = set()
        if self._prepare_fused():
            assert self._fused is not None
            norms, copied = self._fused.step(copy=copy), self._fused.copied
        else:
            norms = clip_grad_norm_by_group(self.groups, self.max_norm)
            self.adam.step()
        if copy:
            self.copy_parameters(but=copied)
        return norms

    def copy_parameters(self, but: Set[int] = frozenset()) -> None:
        """Makes the copies equal to the parameters, but for those whose ids are given."""
        rest = [(p, tensor) for p, tensor in self.copies if id(p) not in but]
        if rest:
            torch._foreach_copy_([tensor for _, tensor in rest], [p for p, _ in rest])

    def _prepare_fused(self) -> bool:
        """Whether the kernels can make this step; makes their table of addresses where it is missing or outdated."""
        if not kernels.in_use() or not _is_plain(self.adam):
            return False
        learning = [p for p in self.adam.param_groups[0]["params"] if p.grad is not None]
        if any(p not in self.adam.state for p in learning):  # Adam makes its state at its first step
            return False
        if not all(p.grad.dtype == torch.float32 and same_memory_order(p.grad, p) for p in learning):
            return False
        if self._fused is None or not self._fused.is_valid():
            if torch.cuda.is_current_stream_capturing():  # too late for a new table of addresses
                return False
            copies = [(p, tensor) for p, tensor in self.copies if same_memory_order(p, tensor)]
            self._fused = FusedClippedAdam(self.adam, self.groups, self.max_norm, copies)
        return True


def _is_plain(adam: torch.optim.Adam) -> bool:
    """Whether it is an Adam without extras, of one parameter group, that counts its steps on a GPU."""
    group, *others = adam.param_groups
    return group["capturable"] and not (others or group["weight_decay"] or group["amsgrad"] or group["maximize"])


def same_memory_order(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape have their numbers in the same order; a dimension of size 1 has none."""
    return all(n == 1 or at == bt for n, at, bt in zip(a.shape, a.stride(), b.stride(), strict=True))
