"""On a GPU: captured acting is eager acting, staged writes arrive whole, and a run can be resumed."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import playvirtual as pv
from playvirtual.replay import Priorities, Replay
from playvirtual.replay.writer import SLOTS
from playvirtual.training import checkpoint, frames
from playvirtual.training.acting import Acting
from playvirtual.training.capture import WARM_UPS, CapturedPhases
from playvirtual.training.loop import Training, device_of
from playvirtual.training.pack import pack, unpack
from tests.replay.storing import store
from tests.training.small import TASKS
from tests.training.stopping import interrupted

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

CUDA: dict[str, Any] = {"device": "cuda", "capture": "graph", "precision": "fp32"}


def pictures(training: Training, lanes: int, seed: int) -> npt.NDArray[np.uint8]:
    shape = (lanes, *training.observation_shape)
    return np.random.default_rng(seed).integers(256, size=shape).astype(np.uint8)


def captured(acting: Acting) -> bool:
    return acting._graph is not None and bool(acting._graph._launch._graphs)


def compare(training: Training, acting: Acting, observations: npt.NDArray[np.uint8]) -> None:
    """The same actions as the agent's own, from the same random numbers."""
    generator = training.generator
    before = generator.get_state()
    expected = training.agent.act(observations, explore=acting.explore).cpu().numpy()
    after = generator.get_state()
    generator.set_state(before)
    np.testing.assert_allclose(acting(observations), expected, atol=1e-5)
    assert torch.equal(generator.get_state(), after)


@pytest.mark.parametrize(("task", "options"), TASKS)
@pytest.mark.parametrize("explore", [False, True])
def test_captured_acting_equals_eager_acting_while_the_weights_change(
    task: str, options: dict[str, Any], explore: bool
) -> None:
    training = Training(pv.build(task, **{**options, **CUDA}))
    while training.step < training.config.replay.min_size:
        training.interact()
    acting = Acting(training.agent, explore=explore, capture=True)
    training.learner.schedule.set(100)
    for call in range(WARM_UPS + 6):
        compare(training, acting, pictures(training, 1, call))
        assert captured(acting) == (call >= WARM_UPS)
        for _ in range(2):  # beyond the updates' own warm-ups: both kinds of graphs share the generator
            training.learner.update()
    other = Training(pv.build(task, **{**options, **CUDA}, seed=9))
    training.agent.load_state_dict(other.agent.state_dict())
    for call in range(3):
        compare(training, acting, pictures(training, 1, call))


@pytest.mark.parametrize(("task", "options"), TASKS)
def test_lanes_that_are_over_are_left_out(task: str, options: dict[str, Any]) -> None:
    training = Training(pv.build(task, **{**options, **CUDA}))
    acting = Acting(training.agent, capture=True)
    for call, lanes in enumerate([32, 32, 32, 32, 32, 31, 7, 1]):
        compare(training, acting, pictures(training, lanes, call))
    graph = acting._graph
    compare(training, acting, pictures(training, 40, 99))  # more than ever before: new buffers
    assert acting._graph is not graph


def test_a_chosen_action_is_not_overwritten_by_the_next() -> None:
    task, options = TASKS[1]
    training = Training(pv.build(task, **{**options, **CUDA}))
    chosen = [training.explore(pictures(training, 1, 0)) for _ in range(WARM_UPS + 4)]
    assert len({action.tobytes() for action in chosen}) == len(chosen)


def test_a_capture_that_the_device_gets_to_late_repeats_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(torch.cuda.CUDAGraph):
        def capture_begin(self, *args: Any, **options: Any) -> None:
            torch.cuda._sleep(10**8)  # about 50 ms before what beginning a capture does on the device
            super().capture_begin(*args, **options)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Late)
    generator, drawn = torch.Generator("cuda").manual_seed(0), torch.zeros(4, device="cuda")
    phases = CapturedPhases(lambda _: drawn.normal_(generator=generator), drawn.device, [generator])
    rows = []
    for _ in range(WARM_UPS + 3):
        phases(0)
        rows.append(tuple(drawn.tolist()))
    expected = torch.Generator("cuda").manual_seed(0)
    assert rows == [tuple(torch.randn(4, device="cuda", generator=expected).tolist()) for _ in rows]


@pytest.mark.parametrize("action_size", [None, 3])
def test_entries_arrive_whole_though_the_device_is_far_behind(action_size: int | None) -> None:
    """Many more entries than slots, added while the device is busy with something long: none may be overtaken."""
    capacity, count = 150, 3 * SLOTS + 11
    rings = [Replay(capacity, (1, 84, 84), 4, action_size, device) for device in ("cpu", "cuda")]
    followers = [Priorities(ring, alpha=0.5, span=5) for ring in rings]
    random = np.random.default_rng(0)
    frames = random.integers(256, size=(count, 1, 84, 84)).astype(np.uint8)
    torch.cuda._sleep(10**8)  # about 50 ms
    for i in range(count):
        action = np.int64(i % 5) if action_size is None else random.random(action_size).astype(np.float32)
        last = frames[i] if i % 40 == 39 else None
        for ring, follower in zip(rings, followers, strict=True):
            store(ring, frames[i], action, i / 8, terminal=i % 23 == 22, last=last)
            follower.follow()
    host, device = rings
    assert int(device._head) == host.head == device.head
    for name in ("frames", "actions", "rewards", "terminals", "acted", "episodes", "numbers"):
        assert torch.equal(getattr(device, name).cpu(), getattr(host, name)), name
    assert torch.equal(followers[1].values.cpu(), followers[0].values)
    for within in (False, True):
        starts = [ring.startable(5, within_episode=within).cpu() for ring in rings]
        assert torch.equal(*starts)
    index = torch.nonzero(starts[0]).flatten()
    assert torch.equal(device.observations(index.to(device.device)).cpu(), host.observations(index))


@pytest.mark.parametrize(("task", "options"), TASKS)
def test_a_resumed_run_goes_on_with_the_same_random_numbers(task: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Rounding on a GPU may differ from run to run; how much was drawn, stored and learned may not."""
    settings = {**options, **CUDA, "quiet": True, "log_every": 30, "checkpoint_every": 0, "every": 0, "steps": 120}
    pv.train(task, run_dir=tmp_path / "whole", **settings)
    interrupted(task, settings, tmp_path / "parts", 71)
    pv.train(task, run_dir=tmp_path / "parts", resume=True, **settings)
    states, lines = [], []
    for run in (tmp_path / "whole", tmp_path / "parts"):
        path = checkpoint.newest(run)
        tensors = checkpoint.read_tensors(path, "state.safetensors")
        states.append(unpack(json.loads(checkpoint.read(path, "state.json"))["tree"], tensors))
        lines.append([json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()])
    whole, parts = states
    assert torch.equal(whole["generator"], parts["generator"])
    assert whole["step"] == parts["step"] == 120
    counters = [[(line["step"], line["updates"]) for line in run] for run in lines]
    assert counters[0] == counters[1]
    played = slice(settings["min_size"])  # at random: the same in both
    assert torch.equal(whole["replay"]["actions"][played], parts["replay"]["actions"][played])
    assert all(np.isfinite(value) for line in lines[1] for key, value in line.items() if key.startswith("loss"))


def test_an_answer_does_not_wait_for_what_came_after_it() -> None:
    task, options = TASKS[1]
    training = Training(pv.build(task, **{**options, **CUDA}))
    acting = Acting(training.agent, capture=True)
    for call in range(WARM_UPS + 3):
        observations = pictures(training, 1, call)
        expected = training.agent.act(observations).cpu().numpy()
        answer = acting.ask(observations)
        torch.cuda._sleep(10**8)  # some 50 ms of the device's time
        after = torch.cuda.Event()
        after.record()
        np.testing.assert_allclose(answer(), expected, atol=1e-5)
        assert not after.query()


@pytest.mark.parametrize(("task", "options"), TASKS)
def test_captured_updates_step_by_the_fused_kernels(task: str, options: dict[str, Any]) -> None:
    training = Training(pv.build(task, **{**options, **CUDA}))
    while training.step < training.config.replay.min_size:
        training.interact()
    for _ in range(training.agent.phases * (WARM_UPS + 1)):
        training.learner.update()
    agent: Any = training.agent
    descents = [agent._descent] if task == "toy/catch" else list(agent._descents.values())
    assert all(descent._fused is not None and descent._fused.fits() for descent in descents)


@pytest.mark.parametrize(("task", "options"), TASKS)
@pytest.mark.parametrize(("first", "then"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_training_goes_on_on_another_kind_of_device(
    task: str, options: dict[str, Any], first: str, then: str
) -> None:
    configs = [pv.build(task, **{**options, **CUDA, "device": device}) for device in (first, then)]
    with closing(Training(configs[0])) as one, closing(Training(configs[1])) as other:
        while one.step < 60:
            one.advance()
        state = unpack(*pack(one.state_dict()))
        assert device_of(state) == first
        other.load_state_dict(state)
        stored = dict(frames.files(one.replay))
        frames.restore(other.replay, lambda name: stored[name]())
        assert other.rejoin(state)
        assert torch.equal(other.replay.frames.cpu(), one.replay.frames.cpu())
        for name, value in one.agent.weights().items():
            assert torch.equal(other.agent.weights()[name].cpu(), value.cpu()), name
        updates = other.learner.updates
        while other.step < 80:
            other.advance()
        assert other.learner.updates > updates
        assert other.learner.watch.found() is None
