"""Measurements of a run's parts agree with each other and with the clock."""

import json
import time
from pathlib import Path

import pytest
import torch

import playvirtual as pv
from playvirtual import envs
from playvirtual.bench import measure
from playvirtual.bench.measure import FILL, TimedEnv, prepare
from playvirtual.bench.profiling import profile_updates, summarize
from playvirtual.bench.table import rate
from playvirtual.cli.main import main
from playvirtual.envs.env import ResetsInBackground
from playvirtual.training.learner import Learner
from tests.cli.command import playvirtual


@pytest.mark.slow
def test_a_bench_prints_its_table_and_writes_only_the_file_asked_for(tmp_path: Path) -> None:
    began = time.perf_counter()
    result = playvirtual(
        "bench", "toy/catch", "--device", "cpu", "--repeats", "2", "--K", "2", "--json", "o.json", cwd=tmp_path
    )
    took = time.perf_counter() - began
    assert result.returncode == 0, result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["o.json"]
    found = json.loads((tmp_path / "o.json").read_text())

    assert (found["task"], found["method"], found["K"], found["M"]) == ("toy/catch", "playvirtual", 2, "2A")
    assert (found["compile"], found["precision"], found["gpu_gib"]) == ("off", "fp32", None)  # as a CPU computes
    assert found["machine"]["torch"] == torch.__version__
    update = found["update_ms"]
    assert 0 < update["q1"] <= update["median"] <= update["q3"]
    assert found["updates_per_s"] == pytest.approx(1e3 / update["median"])
    assert found["blocks"] * found["block_updates"] * update["q1"] / 1e3 / 2 < took
    loop = found["loop"]
    assert loop["environment"] + loop["acting"] + loop["update"] == pytest.approx(1.0)
    assert min(loop["environment"], loop["acting"], loop["update"]) > 0
    assert loop["steps"] % 2 == 0  # one update every two steps: a fair pass has whole updates
    assert loop["steps"] / loop["steps_per_s"] < took
    assert 0.05 < found["rss_gib"] < 64
    kernels = found["kernels"]
    assert kernels["kind"] == "CPU operators"
    assert [k["ms"] for k in kernels["top"]] == sorted((k["ms"] for k in kernels["top"]), reverse=True)
    assert 0 < sum(k["share"] for k in kernels["top"]) <= 1 + 1e-9
    assert sum(k["calls"] for k in kernels["top"]) <= kernels["per_update"]
    assert any(k["name"] in ("aten::addmm", "aten::mm") for k in kernels["top"])

    for words in (
        "toy/catch, playvirtual: batch 32, K = 2, M = 2A; fp32, compile off",
        f"one update                  {update['median']:.3f} ms (quartiles",
        f"agent steps, whole loop     {rate(loop['steps_per_s'])} /s (0.5 updates each",
        f"torch {torch.__version__}",
        "first update ready after",
        "process memory, peak",
    ):
        assert words in result.stdout
    assert "GPU" not in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["toy/cacth"], "task: 'toy/cacth' is not known; did you mean 'toy/catch'?"),
        (["toy/catch", "--repeats", "1"], "repeats: 1 is not allowed; allowed: 2 or more"),
        (["toy/catch", "--repeats", "many"], "repeats: 'many' is not allowed; allowed: a whole number"),
        (["toy/catch", "--precision", "fp8"], "precision: 'fp8' is not known"),
        (["toy/catch", "--device", "cuda:99"], "device: 'cuda:99' is not there"),
        (["toy/catch", "--json", "nowhere/o.json"], "json: 'nowhere/o.json' cannot be written"),
        (["toy/catch", "--steps", "50"], "steps: 50 is not allowed; allowed: 501 or more"),
        (
            ["toy/catch", "--steps", "50", "--learning-starts", "40"],
            "steps: 50 is too short a run to measure; allowed: 300",
        ),
        (["toy/catch", "--capacity", "50"], "capacity: 50 is too little to measure; allowed: 300 or more"),
        (["toy/catch", "--updates-per-step", "0"], "updates_per_step: 0.0 leaves nothing to measure"),
        ([], "task: none is given; allowed: what `playvirtual list tasks` shows"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"playvirtual: error: {message}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_from_python_with_alternating_updates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "LOOP_S", 0.2)  # the fact is in the counts, not in the times
    found = pv.benchmark("toy/reach", method="spr", device="cpu", repeats=2)
    assert isinstance(found, pv.Measurement)
    assert (found.method, found.M) == ("spr", "0")
    assert found.block_updates % 2 == 0  # the actor learns in every second update: a fair block has both kinds
    assert capsys.readouterr().err.startswith(f"playvirtual: playing {FILL} random steps\nplayvirtual: first updates\n")


def test_preparing_fills_the_replay_and_makes_the_updates_that_are_due() -> None:
    prepared = prepare(pv.build("toy/catch", device="cpu", learning_starts=50))
    trainer = prepared.trainer
    assert prepared.fill == 50
    assert trainer.learner.updates == 1
    assert trainer.step == 51  # half an update per step: the second step after the random ones brings the first
    trainer.close()


def test_preparing_does_not_train_until_a_rare_update_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """The baselines copy their target networks every thousands of updates; that kind is warmed up by itself."""
    launched: list[int] = []
    run_update = Learner.run_update
    monkeypatch.setattr(Learner, "run_update", lambda self, kind: (launched.append(kind), run_update(self, kind)))
    prepared = prepare(pv.build("toy/catch", device="cpu", method="otr", target_period=4_000, learning_starts=50))
    assert prepared.trainer.learner.updates == 1
    assert launched == [0, 3_999]
    prepared.trainer.close()


def test_kernels_are_added_up_per_update() -> None:
    found = summarize("CUDA kernels", [("a", 300.0), ("b", 1000.0), ("a", 500.0), ("c", 200.0)], updates=2)
    assert (found.per_update, found.ms) == (2.0, 1.0)
    assert [(k.name, k.calls, k.ms, k.share) for k in found.top] == [
        ("b", 0.5, 0.5, 0.5),
        ("a", 1.0, 0.4, 0.4),
        ("c", 0.5, 0.1, 0.1),
    ]


def test_the_profiler_counts_what_ran() -> None:
    x = torch.ones(8, 8)
    found = profile_updates(lambda: x @ x, 3, torch.device("cpu"))
    assert {k.name: k.calls for k in found.top}["aten::mm"] == 1.0


def test_a_timed_env_passes_background_resets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    config = pv.build("atari/pong").environment
    env, prepared = envs.make("atari/pong", 1, training=True, config=config), []
    monkeypatch.setattr(env, "prepare_reset", prepared.append)
    timed = TimedEnv(env)
    assert isinstance(timed, ResetsInBackground)
    timed.prepare_reset(7)
    assert prepared == [7]
    timed.close()
    toy = TimedEnv(envs.make("toy/catch", 1, training=True, config=pv.build("toy/catch").environment))
    toy.prepare_reset(7)  # does nothing: its reset is fast
    toy.close()
