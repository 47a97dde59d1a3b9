"""One update from end to end: sample, agent.update, priorities, metrics, and a guard against non-finite losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from playvirtual.agents.agent import Agent, ResetsNetworks, Schedule, Update
from playvirtual.errors import InputError, shown
from playvirtual.replay.samplers import BatchSampler
from playvirtual.training.compiled.compiling import compile_once
from playvirtual.training.compiled.cudagraph import CudaGraphs


class NonFinite(NamedTuple):
    """The first update with a loss that is infinite or NaN."""

    losses: list[str]
    update: int  # from 1
    positions: dict[str, list[int]]  # the batch's positions in the replay, by the kind of batch


class NonFiniteGuard:
    """Keeps, on the device, the losses and the batch of the newest update, and freezes at the first non-finite one.

    `check` is part of the captured update: static shapes, no waiting, in-place writes. Each kind of update has
    its own losses and so its own tensors.
    """

    def __init__(self, device: torch.device) -> None:
        self._all_finite = torch.ones((), dtype=torch.bool, device=device)  # of all updates so far
        self._count = torch.zeros((), dtype=torch.int64, device=device)  # updates up to the first non-finite one
        self._names: dict[int, list[str]] = {}
        self._losses: dict[int, Tensor] = {}  # kind → (losses,)
        self._positions: dict[int, dict[str, Tensor]] = {}
        self._keep: Callable[..., None] = keep_until_nonfinite

    def check(self, kind: int, metrics: Mapping[str, Tensor], positions: Mapping[str, Tensor]) -> None:
        """Records one update unless an earlier one was not finite."""
        names = [name for name in metrics if name.startswith("loss")]
        if not names:
            raise InputError("metrics: an update has none whose name begins with 'loss'; allowed: at least one")
        if kind not in self._names:
            self._names[kind] = names
            self._losses[kind] = torch.zeros(len(names), device=self._count.device)
            self._positions[kind] = {name: torch.zeros_like(index) for name, index in positions.items()}
        self._keep(
            self._all_finite,
            self._count,
            [metrics[name] for name in names],
            self._losses[kind],
            list(positions.values()),
            [self._positions[kind][name] for name in positions],
        )

    def compile(self) -> None:
        """Compiles what is done in every update."""
        self._keep = torch.compile(keep_until_nonfinite)

    def found(self) -> NonFinite | None:
        """The first non-finite update, if there was one; waits for the device."""
        if bool(self._all_finite):
            return None
        bad = {kind: (~torch.isfinite(losses)).tolist() for kind, losses in self._losses.items()}
        (kind,) = (kind for kind, flags in bad.items() if any(flags))
        losses = [name for name, flag in zip(self._names[kind], bad[kind], strict=True) if flag]
        return NonFinite(losses, int(self._count), {k: v.tolist() for k, v in self._positions[kind].items()})

    def state_dict(self) -> dict[str, Any]:
        """The number of updates: a checkpoint is only written while all of them were finite."""
        return {"count": self._count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what `state_dict` gave, in place."""
        self._count.copy_(state["count"])


def keep_until_nonfinite(
    all_finite: Tensor,  # () bool: so far
    count: Tensor,  # () updates up to the first non-finite one
    losses: Sequence[Tensor],  # () each
    kept_losses: Tensor,  # (losses,)
    positions: Sequence[Tensor],
    kept_positions: Sequence[Tensor],
) -> None:
    """Keeps an update's losses and positions, in place, unless an earlier one had a loss that is not finite."""
    stacked = torch.stack([loss.float() for loss in losses])
    kept_losses.copy_(torch.where(all_finite, stacked, kept_losses))
    for index, kept in zip(positions, kept_positions, strict=True):
        kept.copy_(torch.where(all_finite, index, kept))
    count.add_(all_finite)
    all_finite.logical_and_(torch.isfinite(stacked).all())


def checked_update(update: Any) -> Update:
    """What an agent's `update` returned; raises an InputError for what cannot be added up on the device."""
    if not isinstance(update, tuple) or len(update) != 2 or not isinstance(update[0], Mapping):
        raise InputError(
            f"update: the agent returned a {type(update).__name__}; allowed: pv.Update(metrics), or with priorities"
        )
    for name, value in update[0].items():
        if not isinstance(value, Tensor):
            found = f"a {type(value).__name__}"
        elif value.ndim:
            found = f"of shape {tuple(value.shape)}"
        elif value.requires_grad:  # their sum would keep the graphs of all updates
            found = "not detached"
        else:
            continue
        raise InputError(f"metrics: {name!r} is {found}; allowed: a tensor of one number, as loss.mean().detach() is")
    return Update(*update)


def add_metrics(sums: Tensor, metrics: Sequence[Tensor]) -> None:
    """Adds an update's metrics, () each, and 1 for the update itself, in place."""
    sums.add_(torch.stack([*(value.float() for value in metrics), sums.new_ones(())]))


class Learner:
    """Updates the agent from batches of a sampler, on a GPU as one CUDA graph per kind of update; never waits for it.

    `compile` is "off", "cudagraph" (capture updates on CUDA) or "full" (torch.compile first). Processes on one machine
    that give the same `compile_key` compile in turns, so that all but the first find the code compiled.
    """

    def __init__(
        self, agent: Agent, sampler: BatchSampler, generator: torch.Generator, *, compile: str, compile_key: str = ""
    ) -> None:
        self.agent, self.sampler = agent, sampler
        self._resets = agent if isinstance(agent, ResetsNetworks) else None
        self.schedule = Schedule(agent.schedules, agent.device)
        self.updates = 0
        self.guard = NonFiniteGuard(agent.device)
        self._names: dict[int, list[str]] = {}  # kind → its metrics
        self._sums: dict[int, Tensor] = {}  # kind → (metrics + 1,): their sums, and the number of updates summed
        self._add_metrics: Callable[[Tensor, Sequence[Tensor]], None] = add_metrics
        self._since_metrics = 0  # updates
        self.launch: Callable[[int], None] = self.run_update
        self._compiled: set[int] = set()  # kinds whose first update has compiled their code
        self._compile_key = compile_key if agent.device.type == "cuda" and compile == "full" else ""
        if agent.device.type == "cuda":
            torch.backends.cudnn.benchmark = True  # shapes never change, so searching for the best kernels pays
        if agent.device.type == "cuda" and compile != "off":
            if compile == "full":
                agent.compile()
                sampler.compile()
                self.guard.compile()
                self._add_metrics = torch.compile(add_metrics)
            self.launch = CudaGraphs(self.run_update, agent.device, [generator])

    def update(self) -> None:
        """One update; its metrics are summed on the device until `metrics` fetches them."""
        if self._resets is not None and self._resets.resets_before(self.updates):
            self._resets.reset(self.updates)
        kind = self.agent.update_pattern.kind(self.updates)
        if self._compile_key and kind not in self._compiled:
            self._compiled.add(kind)
            with compile_once(f"{self._compile_key}-{kind}", _compile_marks()):
                self.launch(kind)
        else:
            self.launch(kind)
        self.updates += 1
        self._since_metrics += 1

    def run_update(self, kind: int) -> None:
        """The work of one update of that kind: sample, update the agent and its priorities, record the metrics."""
        self.schedule.due = self.agent.update_pattern.due(kind)
        batch: Any = self.sampler.sample(self.schedule)
        metrics, priorities = checked_update(self.agent.update(batch, self.schedule))
        self.sampler.update_priorities(batch, priorities)
        self.guard.check(kind, metrics, self.sampler.positions(batch))
        if kind not in self._sums:  # not every kind of update has every metric
            self._names[kind] = list(metrics)
            self._sums[kind] = torch.zeros(len(metrics) + 1, device=self.agent.device)
        if self._names[kind] != list(metrics):
            raise InputError(
                f"metrics: {shown(list(metrics))} are those of an update; allowed: {shown(self._names[kind])}, as of "
                "the updates before it, in this process or in the checkpoint"
            )
        self._add_metrics(self._sums[kind], list(metrics.values()))

    def metrics(self) -> dict[str, float]:
        """Means over the updates since the last call; waits for the device."""
        if not self._since_metrics:
            return {}
        totals: dict[str, tuple[float, float]] = {}
        for kind, sums in self._sums.items():
            *values, count = sums.tolist()
            for name, value in zip(self._names[kind], values, strict=True):
                total, updates = totals.get(name, (0.0, 0.0))
                totals[name] = total + value, updates + count
            sums.zero_()
        self._since_metrics = 0
        return {name: total / updates for name, (total, updates) in totals.items() if updates}

    def state_dict(self) -> dict[str, Any]:
        """Counters, schedules and the sums since the last call of `metrics`; the agent's state is not part of it."""
        return {
            "updates": self.updates,
            "since_metrics": self._since_metrics,
            "sums": {str(kind): {"names": self._names[kind], "sums": sums} for kind, sums in self._sums.items()},
            "schedule": dict(self.schedule),
            "guard": self.guard.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what `state_dict` gave; to be called before the first update."""
        self.updates, self._since_metrics = state["updates"], state["since_metrics"]
        if any(saved["sums"].shape != (len(saved["names"]) + 1,) for saved in state["sums"].values()):
            raise ValueError("sums: not one for every metric")
        self._names = {int(kind): list(saved["names"]) for kind, saved in state["sums"].items()}
        self._sums = {int(kind): saved["sums"].to(self.agent.device) for kind, saved in state["sums"].items()}
        for name, value in self.schedule.items():
            value.copy_(state["schedule"][name])
        self.guard.load_state_dict(state["guard"])


def _compile_marks() -> Path:
    """A folder in PyTorch's cache of compiled code, which disappears with it."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # takes seconds to import

    return Path(cache_dir()) / "playvirtual"
