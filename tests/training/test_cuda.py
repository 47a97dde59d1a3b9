"""On a GPU: captured acting equals eager acting, staged writes arrive complete, and a run can be resumed."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import playvirtual as pv
from playvirtual.agents.agent import policy_state_dict
from playvirtual.replay import PrioritizedSampler, ReplayBuffer
from playvirtual.replay.buffer import STAGING_SLOTS
from playvirtual.replay.snapshot import restore_snapshot, snapshot_files
from playvirtual.runs import checkpoint
from playvirtual.runs.state import flatten_state, unflatten_state
from playvirtual.training.compiled.cudagraph import WARM_UPS, CudaGraphs
from playvirtual.training.policy import AsyncPolicy
from playvirtual.training.trainer import Trainer
from tests.replay.storing import store
from tests.training.interrupting import interrupted
from tests.training.small import TASKS
from tests.training.test_baselines import RUNS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

CUDA: dict[str, Any] = {"device": "cuda", "compile": "cudagraph", "precision": "fp32"}


def random_observations(trainer: Trainer, num_envs: int, seed: int) -> npt.NDArray[np.uint8]:
    shape = (num_envs, *trainer.env.observation_shape)
    return np.random.default_rng(seed).integers(256, size=shape).astype(np.uint8)


def compare(trainer: Trainer, policy: AsyncPolicy, observations: npt.NDArray[np.uint8]) -> None:
    """The same actions as the agent's own, from the same random numbers."""
    generator = trainer.generator
    before = generator.get_state()
    expected = trainer.agent.act(observations, explore=policy.explore).cpu().numpy()
    after = generator.get_state()
    generator.set_state(before)
    np.testing.assert_allclose(policy(observations), expected, atol=1e-5)
    assert torch.equal(generator.get_state(), after)


@pytest.mark.parametrize(("task", "options"), TASKS)
@pytest.mark.parametrize("explore", [False, True])
def test_a_captured_policy_equals_the_eager_one_while_the_weights_change(
    task: str, options: dict[str, Any], explore: bool
) -> None:
    trainer = Trainer(pv.build(task, **{**options, **CUDA}))
    trainer.train(trainer.config.replay.learning_starts - 1)
    policy = AsyncPolicy(trainer.agent, explore=explore, cudagraph=True)
    trainer.learner.schedule.set(100)
    for call in range(WARM_UPS + 6):
        compare(trainer, policy, random_observations(trainer, 1, call))
        assert policy.captured == ({1} if call >= WARM_UPS else set())
        for _ in range(2):  # beyond the updates' own warm-ups: both kinds of graphs share the generator
            trainer.learner.update()
    other = Trainer(pv.build(task, **{**options, **CUDA}, seed=9))
    trainer.agent.load_state_dict(other.agent.state_dict())
    for call in range(3):
        compare(trainer, policy, random_observations(trainer, 1, call))


@pytest.mark.parametrize(("task", "options"), TASKS)
def test_envs_whose_episodes_have_ended_are_left_out(task: str, options: dict[str, Any]) -> None:
    trainer = Trainer(pv.build(task, **{**options, **CUDA}))
    policy = AsyncPolicy(trainer.agent, cudagraph=True)
    for call, num_envs in enumerate([32, 32, 32, 32, 32, 31, 7, 7, 6, 5, 5, 1]):
        compare(trainer, policy, random_observations(trainer, num_envs, call))
    assert policy.captured == {16, 32}  # five calls for 5 to 7 observations, one for a single one
    compare(trainer, policy, random_observations(trainer, 40, 99))  # more than ever before: new buffers
    assert not policy.captured


def test_a_chosen_action_is_not_overwritten_by_the_next() -> None:
    task, options = TASKS[1]
    trainer = Trainer(pv.build(task, **{**options, **CUDA}))
    chosen = [trainer.policy(random_observations(trainer, 1, 0)) for _ in range(WARM_UPS + 4)]
    assert len({action.tobytes() for action in chosen}) == len(chosen)


def test_a_capture_that_the_device_gets_to_late_repeats_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(torch.cuda.CUDAGraph):
        def capture_begin(self, *args: Any, **options: Any) -> None:
            torch.cuda._sleep(10**8)  # about 50 ms before what beginning a capture does on the device
            super().capture_begin(*args, **options)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Late)
    generator, drawn = torch.Generator("cuda").manual_seed(0), torch.zeros(4, device="cuda")
    graphs = CudaGraphs(lambda _: drawn.normal_(generator=generator), drawn.device, [generator])
    rows = []
    for _ in range(WARM_UPS + 3):
        graphs(0)
        rows.append(tuple(drawn.tolist()))
    expected = torch.Generator("cuda").manual_seed(0)
    assert rows == [tuple(torch.randn(4, device="cuda", generator=expected).tolist()) for _ in rows]


@pytest.mark.parametrize("action_size", [None, 3])
def test_entries_arrive_whole_though_the_device_is_far_behind(action_size: int | None) -> None:
    """Many more entries than slots, added while the device is busy with something long: none may be overtaken."""
    capacity, count = 150, 3 * STAGING_SLOTS + 11
    rings = [ReplayBuffer(capacity, (1, 84, 84), 4, action_size, device) for device in ("cpu", "cuda")]
    settings = {"batch_size": 1, "K": 0, "n_step": 5, "gamma": 0.99, "alpha": 0.5}
    samplers = [PrioritizedSampler(ring, torch.Generator(ring.device), **settings) for ring in rings]
    random = np.random.default_rng(0)
    frames = random.integers(256, size=(count, 1, 84, 84)).astype(np.uint8)
    torch.cuda._sleep(10**8)  # about 50 ms
    for i in range(count):
        action = np.int64(i % 5) if action_size is None else random.random(action_size).astype(np.float32)
        last = frames[i] if i % 40 == 39 else None
        for ring, sampler in zip(rings, samplers, strict=True):
            store(ring, frames[i], action, i / 8, terminated=i % 23 == 22, last_frame=last)
            sampler.on_append()
    host, device = rings
    assert host.num_added == device.num_added
    for name in ("frames", "actions", "rewards", "terminated", "has_action", "episodes", "entry_ids"):
        assert torch.equal(getattr(device, name).cpu(), getattr(host, name)), name
    assert torch.equal(samplers[1].priorities.cpu(), samplers[0].priorities)
    for within in (False, True):
        starts = [ring.valid_starts(5, within_episode=within).cpu() for ring in rings]
        assert torch.equal(*starts)
    index = torch.nonzero(starts[0]).flatten()
    assert torch.equal(device.observations(index.to(device.device)).cpu(), host.observations(index))


@pytest.mark.parametrize(("task", "options"), TASKS)
def test_a_resumed_run_draws_the_same_random_numbers(task: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Rounding on a GPU may differ from run to run; how much was drawn, stored and learned may not."""
    settings = {**options, **CUDA, "quiet": True, "log_every": 30, "checkpoint_every": 0, "eval_every": 0, "steps": 120}
    pv.train(task, run_dir=tmp_path / "whole", **settings)
    interrupted(task, settings, tmp_path / "parts", 71)
    pv.train(task, run_dir=tmp_path / "parts", resume=True, **settings)
    states, lines = [], []
    for run in (tmp_path / "whole", tmp_path / "parts"):
        path = checkpoint.newest(run)
        tensors = checkpoint.read_tensors(path, "state.safetensors")
        states.append(unflatten_state(json.loads(checkpoint.read(path, "state.json"))["tree"], tensors))
        lines.append([json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()])
    whole, parts = states
    assert torch.equal(whole["generator"], parts["generator"])
    assert whole["step"] == parts["step"] == 120
    counters = [[(line["step"], line["updates"]) for line in run] for run in lines]
    assert counters[0] == counters[1]
    played = slice(settings["learning_starts"])  # at random: the same in both
    assert torch.equal(whole["replay"]["actions"][played], parts["replay"]["actions"][played])
    assert all(np.isfinite(value) for line in lines[1] for key, value in line.items() if key.startswith("loss"))


def test_actions_do_not_wait_for_what_was_launched_after_them() -> None:
    task, options = TASKS[1]
    trainer = Trainer(pv.build(task, **{**options, **CUDA}))
    policy = AsyncPolicy(trainer.agent, cudagraph=True)
    for call in range(WARM_UPS + 3):
        observations = random_observations(trainer, 1, call)
        expected = trainer.agent.act(observations).cpu().numpy()
        pending = policy.ask(observations)
        torch.cuda._sleep(10**8)  # some 50 ms of the device's time
        after = torch.cuda.Event()
        after.record()
        np.testing.assert_allclose(pending.get(), expected, atol=1e-5)
        assert not after.query()


@pytest.mark.parametrize(("task", "options"), TASKS)
def test_captured_updates_step_by_the_fused_kernels(task: str, options: dict[str, Any]) -> None:
    trainer = Trainer(pv.build(task, **{**options, **CUDA}))
    trainer.train(trainer.config.replay.learning_starts - 1)
    for _ in range(trainer.agent.update_pattern.period * (WARM_UPS + 1)):
        trainer.learner.update()
    agent: Any = trainer.agent
    adams = [agent.clipped_adam] if task == "toy/catch" else list(agent.clipped_adams.values())
    assert all(adam.is_fused for adam in adams)


@pytest.mark.parametrize(("task", "method", "options"), RUNS, ids=[f"{task}-{method}" for task, method, _ in RUNS])
def test_every_kind_of_update_of_a_baseline_is_captured(task: str, method: str, options: dict[str, Any]) -> None:
    values = {name: value for name, value in options.items() if name != "quiet"} | {**CUDA, "precision": "bf16"}
    if task == "toy/catch" and not method.startswith("drq"):
        values["target_period"] = 3
    with closing(Trainer(pv.build(task, method=method, **values))) as trainer:
        trainer.train(trainer.config.replay.learning_starts - 1)
        pattern = trainer.agent.update_pattern
        for _ in range(pattern.period * (WARM_UPS + 2)):
            trainer.learner.update()
        assert isinstance(trainer.learner.launch, CudaGraphs)
        assert trainer.learner.launch.captured == {pattern.kind(update) for update in range(pattern.period)}
        assert trainer.learner.guard.found() is None
        assert all(np.isfinite(value) for value in trainer.learner.metrics().values())


@pytest.mark.parametrize(("task", "options"), TASKS)
@pytest.mark.parametrize(("first", "then"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_training_resumes_on_another_kind_of_device(task: str, options: dict[str, Any], first: str, then: str) -> None:
    configs = [pv.build(task, **{**options, **CUDA, "device": device}) for device in (first, then)]
    with closing(Trainer(configs[0])) as one, closing(Trainer(configs[1])) as other:
        one.train(60)
        state = unflatten_state(*flatten_state(one.state_dict()))
        assert state["device"] == first
        other.load_state_dict(state)
        stored = dict(snapshot_files(one.replay))
        restore_snapshot(other.replay, lambda name: stored[name]())
        assert other.restore_env(state["env"])
        assert torch.equal(other.replay.frames.cpu(), one.replay.frames.cpu())
        weights = policy_state_dict(other.agent)
        for name, value in policy_state_dict(one.agent).items():
            assert torch.equal(weights[name].cpu(), value.cpu()), name
        updates = other.learner.updates
        other.train(20)
        assert other.learner.updates > updates
        assert other.learner.guard.found() is None
