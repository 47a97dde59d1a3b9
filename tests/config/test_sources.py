"""Configurations from TOML files, mappings and other runs: what wins, what is carried over, what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import playvirtual as pv
from playvirtual.cli.main import main
from playvirtual.config.build import build
from playvirtual.config.record import to_dict
from playvirtual.config.sources import Source, configuration, from_config, from_mapping, from_toml, to_toml
from playvirtual.options import leaves
from playvirtual.runs.folder import RunFolder


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("toy/catch", {"K": 5, "learning_rate": 1e-5, "stop_at_score": 0.5}),
        ("toy/reach", {"channels": "4,8", "kernel_sizes": "3,3", "strides": "1,1"}),
        (
            "minatar/breakout",
            {"method": "drq", "encoder_from": "", "init_from": 'a "b"\\\t\x7f é', "preset": "reference"},
        ),
    ],
)
def test_toml_holds_the_whole_configuration(task: str, options: dict[str, Any], tmp_path: Path) -> None:
    config = build(task, **options)
    (tmp_path / "run.toml").write_text(to_toml(config))
    assert configuration([from_toml(tmp_path / "run.toml")]) == config
    assert pv.configure(tmp_path / "run.toml") == pv.configure(str(tmp_path / "run.toml")) == config
    assert pv.configure(config) == pv.configure(to_dict(config)) == config


def test_the_later_source_wins(tmp_path: Path) -> None:
    """Another run, then the file, then single options; names may be written like the flags."""
    RunFolder.create(tmp_path / "run").write_config(build("toy/catch", seed=4, K=5, hidden=16))
    (tmp_path / "a.toml").write_text("learning-starts = 77\nK = 2\n[evaluation]\neval_episodes = 3\n")
    config = pv.configure(config=tmp_path / "a.toml", like=tmp_path / "run", eval_episodes="9", seed=5)
    assert config == build("toy/catch", seed=5, K=2, hidden=16, learning_starts=77, eval_episodes=9)


def test_another_method_or_task_keeps_what_was_changed_alone() -> None:
    spr = build("toy/catch", method="spr", hidden=16, K=5)
    source = from_config(spr, "like: 'spr'")
    assert configuration([source, Source({"method": "rl"})]) == build("toy/catch", method="rl", hidden=16)
    assert configuration([source, Source({"method": "playvirtual"})]) == build("toy/catch", hidden=16, K=5)
    other = configuration([source, Source({"task": "minatar/breakout"})])
    assert other == build("minatar/breakout", method="spr", hidden=16, K=5)
    listed = from_mapping({"task": "toy/catch", "K": 5, "learning_starts": 500})  # 500 is the toy's default
    moved = configuration([listed, Source({"task": "minatar/breakout"})])
    assert moved == build("minatar/breakout", K=5)
    assert {f.name for f, _, _ in leaves(moved)} > {"K", "learning_starts"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("K = -1", "K: -1 is not allowed; allowed: 0 or more"),
        ("K = 'many'", "K: 'many' is not allowed; allowed: a whole number"),
        ("learning_start = 3", "option: 'learning_start' is not known; did you mean 'learning_starts'?"),
        ("M = '2B'", "M: '2B' is not allowed; allowed: a whole number such as 12"),
        ("channels = [8, 8]", "channels, kernel_sizes, strides: (8, 8), "),
        ("actor_period = 2", "option: 'actor_period' is not one of toy/catch"),
        ("compile = 'fast'", "compile: 'fast' is not known; allowed: cudagraph, full, off"),
        ("method = 'sprr'", "method: 'sprr' is not known; did you mean 'spr'?"),
        ("method = 3", "method: 3 is not known; allowed: bbf, bbf-virtual, curl, "),
        ("K = 3\n[objective]\nK = 4", "K: it is given twice"),
        ("agent = 'rainbow'", "agent: 'rainbow' is not allowed; allowed: a table of options"),
        ("K = {a = 1}", "K: {'a': 1} is not allowed; allowed: a value, not a table"),
        ("[agnt]\nhidden = 3", "table: 'agnt' is not known; did you mean 'agent'? allowed: agent, environment, eval"),
        ("stop_at_score = 'high'", "stop_at_score: 'high' is not allowed; allowed: a number"),
        ("K = ", "is not TOML: Invalid value"),
    ],
)
def test_a_bad_file_is_one_line_with_its_name(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f"task = 'toy/catch'\n{text}\n" if "method" not in text else f"{text}\ntask = 'toy/catch'\n")
    assert main(["train", "--config", str(file), "--print-config"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"playvirtual: error: config: {str(file)!r}")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "none.toml"], "config: 'none.toml' cannot be read: No such file or directory"),
        (["--like", "none"], "like: 'none' is not there"),
        (["toy/catch", "--K", "-1", "--config", "OK"], "error: K: -1 is not allowed"),
        (["--config", "EMPTY"], "task: none is given"),
        (["--config", "MODULE"], "so the module 'my_envs' would be imported, which executes it"),
        (["--resume", "x", "--config", "TASK"], "resume: 'x' is given beside a task or --run-dir, --config or --like"),
    ],
)
def test_bad_words_about_sources(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = {"OK": "K = 2", "TASK": "task = 'toy/catch'", "EMPTY": "", "MODULE": "task = 'gym/my_envs:Tiny-v0'"}
    for name, text in contents.items():
        (tmp_path / f"{name}.toml").write_text(text)
    given = [str(tmp_path / f"{word}.toml") if word in contents else word for word in words]
    assert main(["train", *given, "--print-config"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_flags_win_over_the_file_and_help_knows_its_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text("task = 'toy/reach'\nK = 2\nseed = 8\n")
    assert (
        main(["train", "--config", str(tmp_path / "run.toml"), "--crop-size", "9", "--K", "4", "--print-config"]) == 0
    )
    (tmp_path / "printed.toml").write_text(capsys.readouterr().out)
    assert pv.configure(tmp_path / "printed.toml") == build("toy/reach", K=4, seed=8, crop_size=9)


def test_a_module_that_the_user_names_is_trusted() -> None:
    """A mapping is written by the user: that its module is not there is what is wrong with it."""
    with pytest.raises(pv.InputError, match="my_envs") as caught:
        pv.configure({"task": "gym/my_envs:Tiny-v0"})
    assert "trust" not in str(caught.value)


@pytest.mark.parametrize("start", [3, b"toy/catch", ["toy/catch"]])
def test_what_is_no_configuration_is_refused(start: Any) -> None:
    with pytest.raises(pv.InputError, match=r"task: .* is not allowed; allowed: a name"):
        pv.configure(start)
    with pytest.raises(pv.InputError, match=r"config: .* is not allowed; allowed: a Config, a mapping, or the path"):
        pv.configure(config=start)


@pytest.mark.parametrize(
    ("task", "size", "own"), [("gym/CartPole-v1", "paper", "medium"), ("atari/pong", "small", "paper")]
)
def test_another_size_than_that_of_a_whole_configuration_is_refused(task: str, size: str, own: str) -> None:
    """The word was recorded, and said to be asked for, beside the networks and images of the other size."""
    whole = pv.configure(task, device="cpu", steps=3_000)
    assert pv.configure(whole, size=own, seed=2) == replace(whole, seed=2)
    with pytest.raises(pv.InputError) as caught:
        pv.configure(whole, size=size)
    assert str(caught.value) == (
        f"size: {size!r} is not allowed beside config, whose networks and images are of the size {own}; allowed: that "
        "size, or the task alone"
    )
    assert pv.configure("dmc/walker-walk", config=whole, size="small").size == "small"
