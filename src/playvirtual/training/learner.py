"""One update from end to end: sample, learn, give priorities back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from playvirtual.agents.schedule import Schedule
from playvirtual.config import Config, RainbowConfig
from playvirtual.training.capture import CapturedPhases
from playvirtual.training.factory import Agent
from playvirtual.training.sources import Source
from playvirtual.training.watch import Watch


class Learner:
    """Everything that happens on the training device between two actions; never waits for it."""

    def __init__(
        self,
        config: Config,
        agent: Agent,
        source: Source,
        generator: torch.Generator,
    ) -> None:
        self.config, self.agent, self.source = config, agent, source
        self.schedule = schedule_of(config, agent.device)
        self.updates = 0
        self._names: dict[int, list[str]] = {}  # phase → its metrics
        self._sums: dict[int, Tensor] = {}  # phase → (metrics + 1,): their sums, and how many updates they are of
        self._one = torch.ones((), device=agent.device)
        self._since = 0
        self.watch = Watch(agent.device)
        self._launch: Callable[[int], None] = self._work
        if agent.device.type == "cuda":
            torch.backends.cudnn.benchmark = True  # shapes never change, so looking for the best kernels pays
        if agent.device.type == "cuda" and config.capture != "off":
            if config.capture == "compile":
                agent.compile()
                source.compile()
            self._launch = CapturedPhases(self._work, agent.device, [generator])

    def update(self) -> None:
        """One update; its metrics are added up on the device until `metrics` fetches them."""
        self._launch(self.agent.kind(self.updates))
        self.updates += 1
        self._since += 1

    def _work(self, phase: int) -> None:
        self.schedule.phase = phase
        batch: Any = self.source.sample(self.schedule)
        metrics = self.agent.update(batch, self.schedule)
        positions: dict[str, Tensor] = self.source.positions(batch)
        self.source.learned(batch, metrics)
        self.watch.see(phase, metrics, positions)
        newest = torch.stack([*metrics.values(), self._one]).float()
        if phase not in self._sums:  # not every phase has every metric
            self._names[phase], self._sums[phase] = list(metrics), torch.zeros_like(newest)
        self._sums[phase].add_(newest)

    def metrics(self) -> dict[str, float]:
        """Means over the updates since the last call; the one place where the host waits for the device."""
        if not self._since:
            return {}
        totals: dict[str, tuple[float, float]] = {}
        for phase, sums in self._sums.items():
            *values, count = sums.tolist()
            for name, value in zip(self._names[phase], values, strict=True):
                total, updates = totals.get(name, (0.0, 0.0))
                totals[name] = total + value, updates + count
            sums.zero_()
        self._since = 0
        return {name: total / updates for name, (total, updates) in totals.items() if updates}

    def state_dict(self) -> dict[str, Any]:
        """Counters, schedules and the sums since the last line of metrics; the agent's state is its own."""
        return {
            "updates": self.updates,
            "since": self._since,
            "sums": {str(phase): {"names": self._names[phase], "sums": sums} for phase, sums in self._sums.items()},
            "lambda_cyc": self.schedule.lambda_cyc,
            "beta": self.schedule.beta,
            "watch": self.watch.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave; to be called before the first update."""
        self.updates, self._since = state["updates"], state["since"]
        self._names = {int(phase): list(kept["names"]) for phase, kept in state["sums"].items()}
        self._sums = {int(phase): kept["sums"].to(self.agent.device) for phase, kept in state["sums"].items()}
        self.schedule.lambda_cyc.copy_(state["lambda_cyc"])
        self.schedule.beta.copy_(state["beta"])
        self.watch.load_state_dict(state["watch"])


def schedule_of(config: Config, device: torch.device) -> Schedule:
    """What changes with time in this configuration, at its first step."""
    o, c = config.objective, config.agent
    if not isinstance(c, RainbowConfig):
        return Schedule(lambda_cyc_max=o.lambda_cyc_max, i_end=o.i_end, device=device)
    return Schedule(
        lambda_cyc_max=o.lambda_cyc_max,
        i_end=o.i_end,
        beta_start=c.priority_beta_start,
        beta_end=c.priority_beta_end,
        beta_steps=c.priority_beta_steps,
        device=device,
    )
