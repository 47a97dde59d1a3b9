"""The training loop and whole runs: determinism, counters, files, bad input."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import playvirtual as pv
from playvirtual.replay.snapshot import restore_snapshot, snapshot_files
from playvirtual.runs import checkpoint
from playvirtual.runs.folder import RunFolder
from playvirtual.runs.state import flatten_state, unflatten_state
from playvirtual.training.runner import Run
from playvirtual.training.trainer import Trainer

QUICK: dict[str, Any] = {
    "steps": 150,
    "learning_starts": 60,
    "K": 2,
    "eval_episodes": 5,
    "eval_every": 75,
    "log_every": 50,
    "device": "cpu",
    "quiet": True,
}
TINY_ATARI: dict[str, Any] = {
    **QUICK,
    "steps": 40,
    "learning_starts": 30,
    "updates_per_step": 0.5,
    "hidden": 16,
    "channels": "8,8,8",
    "M": 1,
    "batch_size": 4,
    "n_step": 3,
    "eval_episodes": 2,
    "eval_every": 0,
    "max_episode_frames": 400,
}
OPTIONS = {name: value for name, value in QUICK.items() if name != "quiet"}
REACH: dict[str, Any] = {"channels": "8", "kernel_sizes": "3", "strides": "2", "auxiliary_batch_size": 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("toy/catch", QUICK),
        ("minatar/breakout", QUICK),
        pytest.param("atari/breakout", TINY_ATARI, marks=pytest.mark.slow),
    ],
)
def test_the_seed_decides_everything(task: str, options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(123)  # the global random state plays no part
    first = pv.train(task, seed=5, run_dir=tmp_path / "a", **options)
    torch.manual_seed(321)
    pv.train(task, seed=5, run_dir=tmp_path / "b", **options)
    pv.train(task, seed=6, run_dir=tmp_path / "c", **options)
    metrics = [(tmp_path / run / "metrics.jsonl").read_bytes() for run in "abc"]
    assert metrics[0] == metrics[1] != metrics[2]
    evaluations = [(tmp_path / run / "evaluations.jsonl").read_bytes() for run in "ab"]
    assert evaluations[0] == evaluations[1]
    assert len(first.returns) == options["eval_episodes"]
    weights = [(checkpoint.newest(tmp_path / run) / "weights.safetensors").read_bytes() for run in "ab"]
    assert weights[0] == weights[1]


def test_training_leaves_the_global_random_state_alone(tmp_path: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    pv.train("toy/catch", run_dir=tmp_path / "run", **QUICK)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.slow
def test_a_loaded_agent_acts_like_the_trained_one(tmp_path: Path) -> None:
    run = pv.train("toy/catch", run_dir=tmp_path / "run", **QUICK)
    other = pv.train("toy/catch", run_dir=tmp_path / "other", **QUICK, seed=2)
    agent, fresh = (pv.load(each.path).unwrapped for each in (run, other))
    assert pv.evaluate(run.path) == run.returns
    seen = np.random.default_rng(0).integers(2, size=(200, 1, 10, 10)).astype(np.uint8)
    assert agent.act(seen).tolist() == pv.load(run.path).unwrapped.act(seen).tolist()
    assert agent.act(seen).tolist() != fresh.act(seen).tolist()
    assert pv.evaluate(run.path, episodes=60, seed=99) != pv.evaluate(run.path, episodes=60)


@pytest.mark.parametrize(("rate", "updates"), [(2.0, 2 * 91), (1.0, 91), (0.5, 45), (0.25, 22)])
def test_updates_per_step(rate: float, updates: int) -> None:
    """Learning begins in step learning_starts, 60: 150 − 60 + 1 steps have updates."""
    options = {k: v for k, v in QUICK.items() if k != "quiet"}
    trainer = Trainer(pv.build("toy/catch", updates_per_step=rate, **options, batch_size=1, method="rl"))
    trainer.train(150)
    assert trainer.learner.updates == updates


def test_lost_lives_end_the_agents_episode_but_not_the_game() -> None:
    """In Breakout a missed ball costs a life: terminated entries, zeroed stacks, one game."""
    options = {k: v for k, v in TINY_ATARI.items() if k not in ("quiet", "max_episode_frames")}
    trainer = Trainer(pv.build("atari/breakout", **{**options, "steps": 401, "learning_starts": 400}))
    seen = []
    while trainer.env.num_episodes == 1:
        seen.append(trainer.env.observations[0].copy())
        trainer.train(1)
    replay = trainer.replay
    terminals = torch.nonzero(replay.terminated[: replay.num_added]).flatten().tolist()
    assert len(terminals) == 5  # five lives
    for position in range(replay.num_added):
        stored = replay.observations(torch.tensor(position))
        np.testing.assert_array_equal(stored.numpy(), seen[position])
    after = terminals[0] + 1
    assert not seen[after][:3].any()
    assert seen[after][3].any()


def test_rewards_are_clipped_in_training_and_raw_in_scores() -> None:
    """Ms Pac-Man's dots are worth 10: 1 for the learner, 10 in the return."""
    options = {k: v for k, v in TINY_ATARI.items() if k not in ("quiet", "max_episode_frames")}
    trainer = Trainer(pv.build("atari/ms_pacman", **{**options, "steps": 201, "learning_starts": 200}))
    trainer.train(150)
    rewards = trainer.replay.rewards[:150]
    assert set(rewards.tolist()) <= {0.0, 1.0}
    assert rewards.sum() > 0
    assert trainer.env.episode_return >= 10


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_random_play_and_the_first_episode_draw_from_different_streams(seed: int) -> None:
    with closing(Trainer(pv.build("toy/reach", seed=seed, device="cpu"))) as trainer:
        episode = np.random.default_rng(trainer.env.episode_seed(0))
        assert trainer.random.bit_generator.state != episode.bit_generator.state


def test_an_unfinished_checkpoint_does_not_count(tmp_path: Path) -> None:
    run = pv.train("toy/catch", run_dir=tmp_path / "run", **QUICK)
    newest = checkpoint.newest(run.path)
    (newest.parent / "step-000000999.partial").mkdir()
    assert checkpoint.newest(run.path) == newest


def test_run_folder_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(pv.InputError, match="is not a run folder"):
        RunFolder.open(tmp_path)
    for damaged in (b"{", b"\xff\xfe{", b"[]"):
        (tmp_path / "config.json").write_bytes(damaged)
        with pytest.raises(pv.InputError, match=r"config\.json' cannot be read"):
            RunFolder.open(tmp_path).config()
    run = pv.train("toy/catch", run_dir=tmp_path / "run", **QUICK)
    record = json.loads((run.path / "config.json").read_text())
    assert record["task"] == "toy/catch"
    assert {"python", "torch", "numpy"} <= record["versions"].keys()
    assert RunFolder.open(run.path).config() == run.config


@pytest.mark.parametrize(
    ("group", "name", "said"),
    [
        ("objective", "lambda_perd", "field: 'lambda_perd' is not known; did you mean 'lambda_pred'?"),
        ("agent", "crop_size", "field: 'crop_size' is not known; "),
        (None, "sede", "field: 'sede' is not known; did you mean 'seed'?"),
    ],
)
def test_what_a_configuration_does_not_have_is_refused(group: str | None, name: str, said: str, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    folder.write_config(pv.build("toy/catch"))
    record = json.loads((folder.path / "config.json").read_text())
    (record if group is None else record[group])[name] = 1
    (folder.path / "config.json").write_text(json.dumps(record))
    with pytest.raises(pv.InputError) as error:
        folder.config()
    assert str(error.value).startswith(f"run: '{folder.path / 'config.json'}': {said}")


def test_a_bad_value_is_told_with_its_file(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    folder.write_config(pv.build("toy/catch"))
    record = json.loads((folder.path / "config.json").read_text())
    record["objective"]["K"] = "three"
    (folder.path / "config.json").write_text(json.dumps(record))
    with pytest.raises(
        pv.InputError, match=r"^run: '.*/run/config\.json': K: 'three' is not allowed; allowed: a whole"
    ):
        folder.config()


def test_every_published_run_can_be_read() -> None:
    runs = sorted((Path(__file__).parents[2] / "results").rglob("config.json"))
    if not runs:
        pytest.skip("results/ is not here")
    for file in runs:
        assert RunFolder.open(file.parent).config().task == json.loads(file.read_text())["task"]


def test_a_run_is_shown_in_a_line(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", pv.build("toy/catch"), [1.0, 0.0, 1.0])
    assert repr(run) == str(run) == f"Run(path='{tmp_path / 'run'}', score=0.67, episodes=3)"


def test_what_is_shown_of_the_package_is_what_it_is_for() -> None:
    assert dir(pv) == sorted([*pv.__all__, "__version__"])


def test_a_run_may_begin_in_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run = pv.train("toy/catch", run_dir=tmp_path / "run", **QUICK)
    assert RunFolder.open(tmp_path / "run").config() == run.config
    with pytest.raises(pv.InputError, match=r"exists already; .*--resume resumes it"):
        pv.train("toy/catch", run_dir=tmp_path / "run", **QUICK)


def test_what_is_no_run_is_not_to_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("mine")
    (tmp_path / "notes").write_text("mine")
    for name, said in (("thesis", "contains something other than a run"), ("notes", "is a file and not a run folder")):
        with pytest.raises(pv.InputError) as error:
            pv.train("toy/catch", run_dir=tmp_path / name, **QUICK)
        assert str(error.value) == f"run_dir: '{tmp_path / name}' {said}; allowed: a new or an empty folder"
    assert [p.name for p in (tmp_path / "thesis").iterdir()] == ["thesis.tex"]


def test_nothing_is_written_when_the_run_cannot_begin(tmp_path: Path) -> None:
    for options in ({"device": "cuda:7"}, {"kernel_sizes": "30", "channels": "8", "strides": "1"}):
        with pytest.raises((pv.InputError, ValueError)):
            pv.train("toy/catch", run_dir=tmp_path / "run", **{**QUICK, **options})
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("toy/catch", {"capacity": 70}),
        ("toy/catch", {"K": 4, "n_step": 3}),
        ("toy/reach", REACH),
        ("toy/reach", {**REACH, "capacity": 70}),
        ("minatar/breakout", {}),
    ],
)
def test_the_order_of_updates_and_env_step_changes_nothing(task: str, options: dict[str, Any]) -> None:
    """Updates before env.step give the same run as updates after it, where the sampler allows both orders.

    toy/reach ends by time limits; with K ≥ n the sampler reads the newest transition. Nor does it change anything when
    the state for a checkpoint is asked for after every step.
    """
    ends = []
    for way in ("as in a run", "env first", "with checkpoints"):
        sizes = {"batch_size": 8, "hidden": 16, "M": 2, "learning_starts": 60, "steps": 2000}
        config = pv.build(task, device="cpu", **{**sizes, **options})
        with closing(Trainer(config)) as trainer:
            assert trainer.sampler.reads_newest_transition == ("n_step" in options)
            if way == "env first":
                trainer.sampler.reads_newest_transition = True
            trainer.train(160, trainer.state_dict if way == "with checkpoints" else lambda: None)
            _, tensors = flatten_state(trainer.state_dict())
            ends.append(tensors)
    for other in ends[1:]:
        assert ends[0].keys() == other.keys()
        for name, tensor in ends[0].items():
            assert torch.equal(tensor, other[name]), name


def test_asking_for_the_state_changes_nothing_and_gives_it_all_back() -> None:
    """After 50 frames, 13 steps, toy/reach's time limit leaves a frame that is stored with the next step."""
    sizes = {"batch_size": 8, "hidden": 16, "M": 2, "learning_starts": 60, "steps": 2000, **REACH}
    config = pv.build("toy/reach", device="cpu", **sizes)
    with closing(Trainer(config)) as trainer, closing(Trainer(config)) as other:
        while trainer.env.num_episodes == 1:
            trainer.train(1)
        assert trainer.replay.num_added == 13
        tree, tensors = flatten_state(trainer.state_dict())
        assert trainer.replay.num_added == 13
        state = unflatten_state(tree, tensors)
        other.load_state_dict(state)
        pictures = dict(snapshot_files(trainer.replay))
        restore_snapshot(other.replay, lambda name: pictures[name]())
        assert other.restore_env(state["env"])
        for each in (trainer, other):
            each.train(70 - each.step)
            assert each.replay.num_added == 70 + 5  # the frames that five time limits left
        ends = [flatten_state(each.state_dict())[1] for each in (trainer, other)]
        assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
        assert torch.equal(trainer.replay.frames, other.replay.frames)


def test_random_actions_grow_rarer_once_learning_starts() -> None:
    with closing(Trainer(pv.build("toy/catch", **{**OPTIONS, "steps": 900, "random_steps": 800}))) as trainer:
        chances = []
        for trainer.step in range(900):
            chances.append(trainer._plays_at_random())
    thirds = [sum(chances[start : start + 200]) / 200 for start in (60, 360, 660)]
    assert all(chances[:60])
    assert not any(chances[860:])
    assert thirds == pytest.approx([0.875, 0.5, 0.125], abs=0.1)


def test_without_random_steps_the_agent_alone_explores_and_nothing_is_drawn() -> None:
    with closing(Trainer(pv.build("toy/catch", **OPTIONS))) as trainer:
        before = trainer.random.bit_generator.state
        trainer.step = 60
        assert not trainer._plays_at_random()
        assert trainer.random.bit_generator.state == before


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_the_smallest_replay_buffer_always_has_a_start_of_a_batch(limit: int) -> None:
    """A truncated episode leaves an entry without an action, which is none."""
    smallest = {"K": 0, "n_step": 1, "capacity": 3, "max_episode_frames": limit, "updates_per_step": 1}
    with closing(Trainer(pv.build("toy/catch", **{**OPTIONS, **smallest}))) as trainer:
        trainer.train(60)
        for _ in range(12):
            trainer.train(1)
            sampled = trainer.sampler.state_dict()["priorities"] > 0
            assert sampled.any()
            assert trainer.replay.has_action[sampled].all()
