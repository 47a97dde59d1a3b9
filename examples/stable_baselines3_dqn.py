"""Virtual trajectories in somebody else's agent: Stable-Baselines3's DQN on MinAtar.

pip install -e '.[sb3]'
python examples/stable_baselines3_dqn.py [--game breakout] [--steps 20000] [--seed 0] [--plain]
DQN learns as it always does. After its own gradient steps its encoder takes as many more, on what PlayVirtual adds:
prediction along what was recorded, and cycles over actions that nobody has taken. --plain leaves them out.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import minatar.gym
import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn

import playvirtual as pv
from playvirtual.method import DenseDynamics, ProjectionHead, action_space, cosine_distance, prediction_loss, rollout

LATENT = 128
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


class GridEncoder(BaseFeaturesExtractor):
    """f: a grid (N, H, W, C) of ones and zeros -> z (N, LATENT)."""

    def __init__(self, observation_space: gym.spaces.Box) -> None:
        super().__init__(observation_space, LATENT)
        height, width, channels = observation_space.shape
        self.conv = nn.Conv2d(channels, 16, 3)
        self.fc = nn.Linear(16 * (height - 2) * (width - 2), LATENT)

    def forward(self, grid: Tensor) -> Tensor:
        z: Tensor = self.fc(self.conv(grid.permute(0, 3, 1, 2)).relu().flatten(1)).relu()
        return z


class VirtualDQN(DQN):
    """DQN whose encoder also learns from one step of prediction and from cycles of `horizon` virtual steps."""

    def __init__(self, *args: Any, horizon: int = 5, copies: int = 6, i_end: int = 10_000, **kwargs: Any) -> None:
        self.horizon, self.copies, self.i_end = horizon, copies, i_end
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()
        actions = action_space(self.action_space)
        h, b = (DenseDynamics(LATENT, actions, 2 * LATENT) for _ in range(2))
        g, q = (ProjectionHead(LATENT, LATENT) for _ in range(2))
        # One module with all five: h, b, g and q are its own, so its parameters are what is to be learned besides f.
        self.virtual = pv.VirtualTrajectories(
            forward=h,
            backward=b,
            projector=g,
            predictor=q,
            actions=actions,
            horizon=self.horizon,
            copies=self.copies,
            i_end=self.i_end,
        ).to(self.device)
        learning = [*self.q_net.features_extractor.parameters(), *self.virtual.parameters()]
        self.auxiliary_optimizer = torch.optim.Adam(learning, lr=self.lr_schedule(1))

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        super().train(gradient_steps, batch_size)
        losses = np.mean([self.learn_states(batch_size) for _ in range(gradient_steps)], 0)
        for name, loss in zip(("pred", "cyc"), losses, strict=True):
            self.logger.record(f"train/loss_{name}", loss)

    def learn_states(self, batch_size: int) -> tuple[float, float]:
        """One step of the encoder and both dynamics models; returns L_pred and L_cyc."""
        batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
        z = self.encode(self.q_net, batch.observations)
        with torch.no_grad():  # what the states and the cycles are compared with: DQN's own target network
            now, then = (self.encode(self.q_net_target, o) for o in (batch.observations, batch.next_observations))
            home, future = self.virtual.g(now), self.virtual.g(then)
        z_hat = rollout(self.virtual.h, z, batch.actions)  # (B, 1, D): the buffer has single steps
        recorded = (1.0 - batch.dones).squeeze(1)  # what comes after the end of an episode is another one's beginning
        predicted = self.virtual.project(z_hat[:, 0])[:, None]
        pred = (prediction_loss(predicted, future[:, None], cosine_distance) * recorded).mean()
        cyc = self.virtual(z, home, step=self.num_timesteps).mean()
        self.auxiliary_optimizer.zero_grad()
        (pred + cyc).backward()
        self.auxiliary_optimizer.step()
        return pred.item(), cyc.item()

    def encode(self, network: Any, observations: Tensor) -> Tensor:
        """f(s) by the online or the target network."""
        z: Tensor = network.extract_features(observations, network.features_extractor)
        return z

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "virtual", "auxiliary_optimizer"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        modules, others = super()._get_torch_save_params()
        return [*modules, "virtual", "auxiliary_optimizer"], others


def make(game: str, seed: int, plain: bool = False, **options: Any) -> DQN:
    """An agent that has not learned anything yet."""
    minatar.gym.register_envs()
    name = "".join(word.capitalize() for word in game.split("_"))
    settings: dict[str, Any] = {
        "learning_rate": 3e-4,
        "buffer_size": 100_000,
        "learning_starts": 1000,
        "target_update_interval": 500,
        "exploration_fraction": 0.3,
        "policy_kwargs": {"features_extractor_class": GridEncoder, "net_arch": [LATENT], "normalize_images": False},
        "seed": seed,
    }
    return (DQN if plain else VirtualDQN)("MlpPolicy", gym.make(f"MinAtar/{name}-v1"), **{**settings, **options})


def main() -> None:
    """Trains, then plays 50 games."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="breakout", choices=GAMES)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="DQN alone")
    options = parser.parse_args()
    agent = make(options.game, options.seed, options.plain)
    agent.learn(options.steps)
    mean, deviation = evaluate_policy(agent, agent.get_env(), n_eval_episodes=50)
    print(f"{type(agent).__name__}, {options.game}, seed {options.seed}: {mean:.1f} ± {deviation:.1f} over 50 games")


if __name__ == "__main__":
    main()
