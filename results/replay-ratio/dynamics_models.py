"""How well the dynamics models of runs predict actions that the agents would not have taken.

    python results/replay-ratio/dynamics_models.py RUNS > results/replay-ratio/dynamics_models.csv

RUNS is the folder of a sweep with its checkpoints. Each agent plays games without sticky actions, by turns eight steps
of its own choice and K uniformly random ones. From the last state before these its forward model rolls out the K random
actions. The error after k of them is the distance of the prediction loss, 2 − 2 cos between q(g(ẑ_{t+k})) and
g_m(z_{t+k}), divided by the distance to g_m of the states of other sequences: 0 is perfect, 1 is no better than any
state of the games. "unchanged" is the same for g_m(z_t) in the place of a prediction.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from playvirtual import envs
from playvirtual.config.schema import Config, with_values
from playvirtual.device import configure_torch
from playvirtual.envs.vector import FrameStack
from playvirtual.runs.agents import RECORD, STATE, STATE_TREE, load_trained_agent
from playvirtual.runs.checkpoint import latest_valid
from playvirtual.runs.folder import RunFolder
from playvirtual.study.settings import changes
from playvirtual.training.policy import AsyncPolicy

K = 3
OWN_STEPS = 8  # of the agent between two sequences of random actions
SEQUENCES = 500
COLUMNS = ("task", "method", "options", "seed", "k", "error", "unchanged")


def random_sequences(policy: AsyncPolicy, config: Config, seed: int) -> tuple[Tensor, Tensor]:
    """Observations (N, K + 1, C, H, W) and random actions (N, K) of sequences that no game's end interrupts."""
    config = with_values(config, {"env_args": ("sticky_action_prob=0",)})
    rng = np.random.default_rng(seed)
    env = envs.make(config.task, 1, training=False, config=config.environment)
    stack = FrameStack(1, config.environment.frame_stack, env.frame_shape)
    seen, taken, game = [], [], 0
    while len(seen) < SEQUENCES:
        stack.clear([0])
        stack.push(env.reset([0], [int(rng.integers(2**31))]))
        game, step, done = game + 1, 0, False
        observations, actions = [], []
        while not done and len(seen) < SEQUENCES:
            phase = step % (OWN_STEPS + K)
            if phase < OWN_STEPS:
                action = policy(stack.observations)
            else:
                action = rng.integers(env.action_space.n, size=1)
                observations.append(stack.observations[0].copy())
                actions.append(int(action[0]))
            result = env.step(action)
            stack.push(result.frames)
            step, done = step + 1, bool(result.done[0])
            if len(actions) == K:
                if not result.terminated[0]:
                    seen.append(np.stack([*observations, stack.observations[0]]))
                    taken.append(actions)
                observations, actions = [], []
    env.close()
    return torch.from_numpy(np.stack(seen)), torch.tensor(taken)


def distance(x: Tensor, y: Tensor) -> Tensor:
    """2 − 2 cos of states (N, …): (N,)."""
    return 2 - 2 * F.cosine_similarity(x.flatten(1), y.flatten(1))


@torch.no_grad()
def errors(run: Path) -> list[tuple[float, float]]:
    """(error, unchanged) after 1, …, K random actions."""
    config = RunFolder.open(run).config()
    device = torch.device("cpu")
    configure_torch(device, config.precision, config.threads)
    agent = load_trained_agent(config, latest_valid(run, (RECORD, STATE_TREE, STATE)), device)
    objective, dynamics = agent.objective, agent.parts["forward_dynamics"].eval()
    observations, actions = random_sequences(AsyncPolicy(agent), config, config.seed)
    z = agent.encode(observations.flatten(0, 1))  # (N · (K + 1), …)
    targets = objective.g_m(z).unflatten(0, (SEQUENCES, K + 1))  # the target network is a copy of the online one
    z_hat, found = z.unflatten(0, (SEQUENCES, K + 1))[:, 0], []
    for k in range(K):
        z_hat = dynamics(z_hat, actions[:, k])
        target, other = targets[:, k + 1], targets[:, k + 1].roll(SEQUENCES // 2, 0)
        error, unchanged = (
            float(distance(x, target).mean() / distance(x, other).mean())
            for x in (objective.q(objective.g(z_hat)), targets[:, 0])
        )
        found.append((error, unchanged))
    return found


def main() -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for file in sorted(Path(sys.argv[1]).rglob("config.json")):
        record = RunFolder(file.parent).record()
        if not record["objective"]["K"]:
            continue
        options = " ".join(f"{name}={value}" for name, value in changes(record).items())
        named = (record["task"], record["method"], options, record["seed"])
        for k, pair in enumerate(errors(file.parent), 1):
            writer.writerow((*named, k, *(f"{value:.4f}" for value in pair)))


if __name__ == "__main__":
    main()
