"""PlayVirtual on Stable-Baselines3's DQN and SAC with image observations, by SB3's own extension points.

pip install -e '.[sb3]'
python examples/sb3_playvirtual.py dqn [--env Catch-v0] [--steps 3000] [--seed 0] [--plain] [--csv FILE]
python examples/sb3_playvirtual.py sac [--env Reach-v0] …
After each of SB3's own gradient steps the encoder makes one more on PlayVirtual's objective, with sequences from the
same replay buffer. --plain trains SB3's algorithm alone. What the objective adds is marked `PlayVirtual`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
import toy_envs  # noqa: F401 (registers Catch-v0 and Reach-v0)
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.buffers import ReplayBuffer  # PlayVirtual
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.preprocessing import preprocess_obs  # PlayVirtual
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.sac.policies import SACPolicy
from torch import Tensor, nn

import playvirtual as pv  # PlayVirtual


# PlayVirtual: begin
class SequenceBuffer(ReplayBuffer):
    """SB3's replay buffer that also yields sequences of K steps."""

    def sample_sequences(self, batch_size: int, K: int) -> pv.method.Sequences:
        return pv.sample_sequences(
            self.observations,
            self.actions,
            self.dones,
            next_observations=self.next_observations,
            K=K,
            batch_size=batch_size,
            size=self.size(),
            position=self.pos,
            device=self.device,
        )


class PlayVirtual:
    """To be inherited before one of SB3's off-policy algorithms, which has its encoder at `encoder_at`."""

    encoder_at: str

    def __init__(self, *args: Any, K: int = 3, M: int = 3, i_end: int = 2000, **kwargs: Any) -> None:
        self.K, self.M, self.i_end = K, M, i_end
        super().__init__(*args, replay_buffer_class=SequenceBuffer, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()
        encoder = self.policy.get_submodule(self.encoder_at)
        space = self.action_space
        if isinstance(space, gym.spaces.Box):  # SB3's buffer holds actions that are scaled to [−1, 1]
            space = gym.spaces.Box(-1.0, 1.0, space.shape)
        self.aux = pv.PlayVirtualLoss(
            encoder, actions=space, latent=encoder.features_dim, K=self.K, M=self.M, i_end=self.i_end
        )
        learning = [*encoder.parameters(), *self.aux.parameters()]
        self.aux_optimizer = torch.optim.Adam(learning, lr=self.lr_schedule(1))

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        super().train(gradient_steps, batch_size)
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample_sequences(batch_size, self.K)
            observations = preprocess_obs(batch.observations, self.observation_space)  # floats in [0, 1]
            losses = self.aux.losses(observations, batch.actions, batch.mask)
            self.aux_optimizer.zero_grad()
            self.aux.total(losses, step=self.num_timesteps).mean().backward()
            self.aux_optimizer.step()
            self.aux.update_targets()
        for name, loss in losses.items():
            self.logger.record(f"train/loss_{name}", loss.mean().item())

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "aux", "aux_optimizer"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        modules, others = super()._get_torch_save_params()
        return [*modules, "aux", "aux_optimizer"], others


class PlayVirtualDQN(PlayVirtual, DQN):
    encoder_at = "q_net.features_extractor"


class PlayVirtualSAC(PlayVirtual, SAC):
    encoder_at = "critic.features_extractor"


# PlayVirtual: end


class SmallCNN(BaseFeaturesExtractor):
    """The encoder f: images (N, C, H, W), scaled to [0, 1] by SB3 -> z (N, features)."""

    def __init__(self, observation_space: gym.spaces.Box, features: int = 64, relu: bool = False) -> None:
        super().__init__(observation_space, features)
        channels, size = observation_space.shape[0], observation_space.shape[1]
        stride = 2 if size > 12 else 1
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 16, 3, stride), nn.ReLU(), nn.Conv2d(16, 16, 3, stride), nn.ReLU(), nn.Flatten()
        )
        with torch.no_grad():
            flat = self.convolutions(torch.zeros(1, *observation_space.shape)).shape[1]
        last = [nn.ReLU()] if relu else [nn.LayerNorm(features), nn.Tanh()]
        self.linear = nn.Sequential(nn.Linear(flat, features), *last)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(self.convolutions(images))


class Detached(nn.Module):
    """An encoder that is used and not trained."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self._encoder = (encoder,)  # a tuple, so that it is no part of this module

    def forward(self, images: Tensor) -> Tensor:
        return self._encoder[0](images).detach()


class SharedEncoderPolicy(SACPolicy):
    """SAC whose actor sees the critic's features, which the critic's loss trains and the actor's does not."""

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.actor.features_extractor = Detached(self.critic.features_extractor)


class Scores(BaseCallback):
    """Plays 20 episodes every `every` steps without exploration, and keeps (step, mean return)."""

    def __init__(self, env: gym.Env, every: int) -> None:
        super().__init__()
        self.env, self.every, self.found = env, every, []

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            mean, _ = evaluate_policy(self.model, self.env, n_eval_episodes=20, warn=False)
            self.found.append((self.num_timesteps, float(mean)))
            print(f"step {self.num_timesteps}: mean return {mean:.2f}", flush=True)
        return True


def make(algorithm: str, env: str, seed: int, plain: bool = False, relu: bool = False, **options: Any) -> DQN | SAC:
    """An untrained agent."""
    encoder = {"features_extractor_class": SmallCNN, "features_extractor_kwargs": {"relu": relu}}
    settings: dict[str, Any] = {
        "learning_starts": 200,
        "buffer_size": 50_000,
        "batch_size": 32,
        "train_freq": 1,
        "policy_kwargs": {**encoder, "net_arch": [64]},
        "seed": seed,
    }
    if algorithm == "dqn":
        settings |= {"learning_rate": 1e-3, "target_update_interval": 50, "exploration_fraction": 0.5}
        return (DQN if plain else PlayVirtualDQN)("MlpPolicy", gym.make(env), **{**settings, **options})
    settings |= {"learning_rate": 1e-3, "gamma": 0.9, "tau": 0.05, "ent_coef": "auto_0.1"}
    return (SAC if plain else PlayVirtualSAC)(SharedEncoderPolicy, gym.make(env), **{**settings, **options})


def main() -> None:
    """Trains, and evaluates on the way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", choices=("dqn", "sac"))
    parser.add_argument("--env", help="default: Catch-v0 for dqn, Reach-v0 for sac")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--every", type=int, default=250, help="steps between evaluations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="without PlayVirtual's objective")
    parser.add_argument("--relu", action="store_true", help="an encoder that ends with ReLU, not LayerNorm and tanh")
    parser.add_argument("--csv", type=Path, help="append the evaluations to this file")
    options = parser.parse_args()
    env = options.env or {"dqn": "Catch-v0", "sac": "Reach-v0"}[options.algorithm]
    agent = make(options.algorithm, env, options.seed, options.plain, options.relu)
    print(f"{type(agent).__name__} on {env}, seed {options.seed}")
    evaluation_env = gym.make(env)
    evaluation_env.reset(seed=10_000 + options.seed)
    scores = Scores(evaluation_env, options.every)
    agent.learn(options.steps, callback=scores)
    if options.csv:
        with options.csv.open("a") as file:
            for step, mean in scores.found:
                objective = "none" if options.plain else "playvirtual"
                host = f"sb3-{options.algorithm}{'-relu' if options.relu else ''}"
                print(host, env, objective, options.seed, step, mean, sep=",", file=file)


if __name__ == "__main__":
    main()
