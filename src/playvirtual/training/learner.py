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
        self.generator = generator
        self.schedule = schedule_of(config, agent.device)
        self.updates = 0
        self._sums: dict[str, Tensor] = {}
        self._since = 0
        self.watch = Watch(agent.device)
        self._launch: Callable[[int], None] = self._work
        if agent.device.type == "cuda" and config.capture != "off":
            if config.capture == "compile":
                agent.compile()
            self._launch = CapturedPhases(self._work, agent.device, [generator])

    def update(self) -> None:
        """One update; its metrics are added up on the device until `metrics` fetches them."""
        self._launch(self.updates % self.agent.phases)
        self.updates += 1
        self._since += 1

    def _work(self, phase: int) -> None:
        self.schedule.phase = phase
        batch: Any = self.source.sample(self.schedule)
        metrics = self.agent.update(batch, self.schedule)
        positions: dict[str, Tensor] = self.source.positions(batch)
        self.source.learned(batch, metrics)
        self.watch.see(phase, metrics, positions)
        for name, value in metrics.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros(2, device=value.device)
            # The sum and how many it is of: not every phase has every metric.
            self._sums[name].add_(torch.stack([value.float(), torch.ones_like(value, dtype=torch.float32)]))

    def metrics(self) -> dict[str, float]:
        """Means over the updates since the last call; the one place where the host waits for the device."""
        if not self._since:
            return {}
        totals = torch.stack(list(self._sums.values())).tolist()
        for total in self._sums.values():
            total.zero_()
        self._since = 0
        return {name: total / count for name, (total, count) in zip(self._sums, totals, strict=True) if count}

    def state_dict(self) -> dict[str, Any]:
        """Counters, schedules and the sums since the last line of metrics; the agent's state is its own."""
        return {
            "updates": self.updates,
            "since": self._since,
            "sums": self._sums,
            "lambda_cyc": self.schedule.lambda_cyc,
            "beta": self.schedule.beta,
            "watch": self.watch.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave; to be called before the first update."""
        self.updates, self._since = state["updates"], state["since"]
        self._sums = {name: total.to(self.agent.device) for name, total in state["sums"].items()}
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
