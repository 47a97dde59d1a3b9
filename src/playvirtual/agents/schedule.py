"""What changes with time: numbers on the training device, written in place so that a captured update reads them."""

from __future__ import annotations

import torch

from playvirtual.method import gaussian_ramp_up


class Schedule:
    """λ_cyc of the cycle loss and β of the importance weights as functions of the step."""

    def __init__(
        self,
        *,
        lambda_cyc_max: float,
        i_end: int,
        beta_start: float = 1.0,
        beta_end: float = 1.0,
        beta_steps: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        self._lambda_cyc_max, self._i_end = lambda_cyc_max, i_end
        self._beta_start, self._beta_end, self._beta_steps = beta_start, beta_end, beta_steps
        self.lambda_cyc = torch.zeros((), device=device)
        self.beta = torch.zeros((), device=device)
        self.phase = 0  # which of an agent's alternating updates comes next: agent.kind of its number
        self.set(0)

    def set(self, step: int) -> None:
        """Moves everything to `step` (agent steps, or environment steps on DMControl)."""
        progress = min(step / self._beta_steps, 1.0)
        self.beta.fill_(self._beta_start + progress * (self._beta_end - self._beta_start))
        self.lambda_cyc.fill_(float(gaussian_ramp_up(step, self._i_end, self._lambda_cyc_max)))
