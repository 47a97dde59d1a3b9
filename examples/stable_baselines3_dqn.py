"""Virtual trajectories in an agent of another library: Stable-Baselines3's DQN on MinAtar.

pip install -e '.[sb3]'
python examples/stable_baselines3_dqn.py [--game breakout] [--steps 20000] [--seed 0] [--plain]
After DQN's own gradient steps its encoder makes as many more on PlayVirtual's auxiliary losses: prediction along the
recorded transitions, and cycle consistency over virtual actions. --plain trains DQN alone.
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
from playvirtual.method import DenseDynamics, ProjectionHead, action_space, cosine_distance, prediction_loss

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
    """DQN whose encoder also learns from one-step prediction and from cycles over M virtual trajectories of K steps."""

    def __init__(self, *args: Any, K: int = 5, M: int = 6, i_end: int = 10_000, **kwargs: Any) -> None:
        self.K, self.M, self.i_end = K, M, i_end
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()
        actions = action_space(self.action_space)
        h, b = (DenseDynamics(LATENT, actions, 2 * LATENT) for _ in range(2))
        g, q = (ProjectionHead(LATENT, LATENT) for _ in range(2))
        # h, b, g and q are submodules, so its parameters are all that is trained besides f.
        self.virtual = pv.VirtualTrajectories(
            forward=h,
            backward=b,
            projector=g,
            predictor=q,
            actions=actions,
            K=self.K,
            M=self.M,
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
        with torch.no_grad():  # the targets come from DQN's target network
            z_now, z_next = (self.encode(self.q_net_target, o) for o in (batch.observations, batch.next_observations))
            cycle_target, target = self.virtual.g(z_now), self.virtual.g(z_next)
        z_hat = self.virtual.h.rollout(z, batch.actions)  # (B, 1, D): the buffer holds single transitions
        mask = (1.0 - batch.dones).squeeze(1)  # (B,): no prediction across the end of an episode
        predicted = self.virtual.project(z_hat[:, 0])[:, None]
        pred = (prediction_loss(predicted, target[:, None], cosine_distance) * mask).mean()
        cyc = self.virtual(z, cycle_target, step=self.num_timesteps).mean()
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
    """An untrained agent."""
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
