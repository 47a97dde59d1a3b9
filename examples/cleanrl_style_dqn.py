"""DQN with PlayVirtual in a single file in the style of CleanRL: read it from top to bottom, and change it.

python examples/cleanrl_style_dqn.py [--env MinAtar/Breakout-v1] [--steps 10000] [--seed 0] [--plain] [--csv FILE]
What the objective adds to DQN is marked `PlayVirtual`; --plain leaves it out.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import gymnasium as gym
import minatar.gym
import numpy as np
import torch
import torch.nn.functional as F
import toy_envs  # noqa: F401 (registers Catch-v0)
from torch import Tensor, nn

import playvirtual as pv  # PlayVirtual


def parse_args(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="MinAtar/Breakout-v1")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="append the evaluations to this file")
    parser.add_argument("--every", type=int, default=1000, help="steps between evaluations")
    parser.add_argument("--learning-starts", type=int, default=1000)
    parser.add_argument("--train-frequency", type=int, default=2, help="steps between updates")
    parser.add_argument("--target-frequency", type=int, default=500, help="steps between copies to the target network")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--end-epsilon", type=float, default=0.05)
    parser.add_argument("--exploration-fraction", type=float, default=0.3)
    parser.add_argument("--plain", action="store_true", help="without PlayVirtual's objective")  # PlayVirtual
    parser.add_argument("--K", type=int, default=3, help="steps of prediction and of cycles")  # PlayVirtual
    parser.add_argument("--M", type=int, default=3, help="virtual trajectories per state")  # PlayVirtual
    parser.add_argument("--i-end", type=int, default=5000, help="λ_cyc reaches 1 at this step")  # PlayVirtual
    return parser.parse_args(words)


class Channels(gym.ObservationWrapper):
    """Grids (H, W, C) of booleans, as MinAtar has them, as images (C, H, W) of uint8."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        height, width, channels = env.observation_space.shape
        self.observation_space = gym.spaces.Box(0, 255, (channels, height, width), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation.transpose(2, 0, 1).astype(np.uint8) * 255


def make_env(name: str) -> gym.Env:
    if name.startswith("MinAtar/") and name not in gym.registry:
        minatar.gym.register_envs()
    env = gym.make(name)
    return Channels(env) if name.startswith("MinAtar/") else env


class QNetwork(nn.Module):
    """The encoder f and the values on its features."""

    def __init__(self, env: gym.Env, features: int = 64) -> None:
        super().__init__()
        channels, height, width = env.observation_space.shape
        flat = 16 * (height - 4) * (width - 4)
        self.encoder = nn.Sequential(
            *(nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(flat, features), nn.LayerNorm(features), nn.Tanh()),
        )
        self.head = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, env.action_space.n))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images))


def evaluate(q_network: QNetwork, env: gym.Env, episodes: int = 20) -> float:
    """The mean return of greedy episodes (with one random action in a hundred, so that none lasts forever)."""
    returns = []
    for _ in range(episodes):
        (obs, _), done, total = env.reset(), False, 0.0
        while not done:
            with torch.no_grad():
                action = q_network(torch.as_tensor(obs[None]).float() / 255).argmax(1).item()
            if np.random.rand() < 0.01:
                action = env.action_space.sample()
            obs, reward, terminated, truncated, _ = env.step(action)
            done, total = terminated or truncated, total + float(reward)
        returns.append(total)
    return float(np.mean(returns))


def main(words: list[str] | None = None) -> list[tuple[int, float]]:
    args = parse_args(words)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    env, evaluation_env = make_env(args.env), make_env(args.env)
    evaluation_env.reset(seed=10_000 + args.seed)
    env.action_space.seed(args.seed)

    q_network = QNetwork(env)
    target_network = copy.deepcopy(q_network)
    learning = list(q_network.parameters())
    # PlayVirtual: begin
    if not args.plain:
        lengths = {"K": args.K, "M": args.M, "i_end": args.i_end}
        aux = pv.PlayVirtualLoss(q_network.encoder, actions=env.action_space, latent=64, **lengths)
        learning += aux.parameters()
    # PlayVirtual: end
    optimizer = torch.optim.Adam(learning, lr=args.learning_rate)

    # The replay buffer: as many entries as steps, so nothing is overwritten.
    shape = (args.steps, 1, *env.observation_space.shape)  # (capacity, environments, C, H, W)
    observations, next_observations = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    actions, rewards = np.zeros(shape[:2], np.int64), np.zeros(shape[:2], np.float32)
    terminations, dones = np.zeros(shape[:2], np.float32), np.zeros(shape[:2], np.float32)

    scores = []
    obs, _ = env.reset(seed=args.seed)
    for step in range(args.steps):
        progress = min(step / (args.exploration_fraction * args.steps), 1.0)
        epsilon = 1.0 + progress * (args.end_epsilon - 1.0)
        if step < args.learning_starts or np.random.rand() < epsilon:
            action = env.action_space.sample()
        else:
            with torch.no_grad():
                action = q_network(torch.as_tensor(obs[None]).float() / 255).argmax(1).item()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        observations[step, 0], next_observations[step, 0], actions[step, 0] = obs, next_obs, action
        rewards[step, 0], terminations[step, 0], dones[step, 0] = reward, terminated, terminated or truncated
        obs = env.reset()[0] if terminated or truncated else next_obs

        if step >= args.learning_starts and step % args.train_frequency == 0:
            at = np.random.randint(step + 1, size=args.batch_size)
            images, next_images = (torch.as_tensor(a[at, 0]).float() / 255 for a in (observations, next_observations))
            with torch.no_grad():
                bootstrap = target_network(next_images).amax(1)
                discounts = args.gamma * (1 - torch.as_tensor(terminations[at, 0]))
                target = torch.as_tensor(rewards[at, 0]) + discounts * bootstrap
            q = q_network(images).gather(1, torch.as_tensor(actions[at]))[:, 0]
            loss = F.smooth_l1_loss(q, target)
            # PlayVirtual: begin
            if not args.plain:
                batch = pv.sample_sequences(
                    observations,
                    actions,
                    dones,
                    next_observations=next_observations,
                    K=args.K,
                    batch_size=args.batch_size,
                    size=step + 1,
                    position=(step + 1) % args.steps,
                )
                loss = loss + aux(batch.observations / 255, batch.actions, batch.mask, step=step).mean()
            # PlayVirtual: end
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not args.plain:  # PlayVirtual
                aux.update_targets()  # PlayVirtual
        if step % args.target_frequency == 0:
            target_network.load_state_dict(q_network.state_dict())

        if (step + 1) % args.every == 0:
            scores.append((step + 1, evaluate(q_network, evaluation_env)))
            print(f"step {step + 1}: mean return {scores[-1][1]:.2f}", flush=True)

    if args.csv:
        with args.csv.open("a") as file:
            for step, mean in scores:
                objective = "none" if args.plain else "playvirtual"
                print("cleanrl-dqn", args.env, objective, args.seed, step, mean, sep=",", file=file)
    return scores


if __name__ == "__main__":
    main()
