"""One update from end to end: sample, agent.update, priorities, metrics, and a guard against non-finite losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from playvirtual.agents.agent import Agent, Schedule
from playvirtual.errors import InputError, shown
from playvirtual.replay.samplers import BatchSampler
from playvirtual.training.cudagraph import CudaGraphs


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
        self._count = torch.zeros((), dtype=torch.int64, device=device)  # updates up to the first bad one
        self._names: dict[int, list[str]] = {}
        self._losses: dict[int, Tensor] = {}  # kind → (losses,)
        self._positions: dict[int, dict[str, Tensor]] = {}

    def check(self, kind: int, metrics: Mapping[str, Tensor], positions: Mapping[str, Tensor]) -> None:
        """Records one update unless an earlier one was not finite."""
        names = [name for name in metrics if name.startswith("loss")]
        if not names:
            raise InputError("metrics: an update has none whose name begins with 'loss'; allowed: at least one")
        losses = torch.stack([metrics[name].float() for name in names])
        if kind not in self._names:
            self._names[kind] = names
            self._losses[kind] = torch.zeros_like(losses)
            self._positions[kind] = {name: torch.zeros_like(index) for name, index in positions.items()}
        recorded = self._losses[kind]
        torch.where(self._all_finite, losses, recorded, out=recorded)
        for name, index in positions.items():
            recorded = self._positions[kind][name]
            torch.where(self._all_finite, index, recorded, out=recorded)
        self._count.add_(self._all_finite)
        self._all_finite.logical_and_(torch.isfinite(losses).all())

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


class Learner:
    """Updates the agent from batches of a sampler, on a GPU as one CUDA graph per kind of update; never waits for it.

    `compile` is "off", "cudagraph" (capture updates on CUDA) or "full" (torch.compile first).
    """

    def __init__(self, agent: Agent, sampler: BatchSampler, generator: torch.Generator, *, compile: str) -> None:
        self.agent, self.sampler = agent, sampler
        self.schedule = Schedule(agent.schedules, agent.device)
        self.updates = 0
        self.guard = NonFiniteGuard(agent.device)
        self._names: dict[int, list[str]] = {}  # kind → its metrics
        self._sums: dict[int, Tensor] = {}  # kind → (metrics + 1,): their sums, and the number of updates summed
        self._one = torch.ones((), device=agent.device)
        self._since_metrics = 0  # updates
        self.launch: Callable[[int], None] = self.run_update
        if agent.device.type == "cuda":
            torch.backends.cudnn.benchmark = True  # shapes never change, so searching for the best kernels pays
        if agent.device.type == "cuda" and compile != "off":
            if compile == "full":
                agent.compile()
                sampler.compile()
            self.launch = CudaGraphs(self.run_update, agent.device, [generator])

    def update(self) -> None:
        """One update; its metrics are summed on the device until `metrics` fetches them."""
        self.launch(self.agent.update_pattern.kind(self.updates))
        self.updates += 1
        self._since_metrics += 1

    def run_update(self, kind: int) -> None:
        """The work of one update of that kind: sample, update the agent and its priorities, record the metrics."""
        self.schedule.due = self.agent.update_pattern.due(kind)
        batch: Any = self.sampler.sample(self.schedule)
        metrics, priorities = self.agent.update(batch, self.schedule)
        self.sampler.update_priorities(batch, priorities)
        self.guard.check(kind, metrics, self.sampler.positions(batch))
        values = torch.stack([*metrics.values(), self._one]).float()
        if kind not in self._sums:  # not every kind of update has every metric
            self._names[kind], self._sums[kind] = list(metrics), torch.zeros_like(values)
        if self._names[kind] != list(metrics):
            raise InputError(f"checkpoint: it has metrics of another agent, {shown(self._names[kind])}")
        self._sums[kind].add_(values)

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
