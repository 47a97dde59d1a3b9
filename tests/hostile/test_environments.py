"""Environments that break their contract: one line with the environment, the moment and what is allowed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hostile.conftest import Commands, hostile
from tests.waiting import HANG

pytestmark = pytest.mark.slow(seconds=2)

SAID = {
    "NanReward": "reward: nan is not allowed, given by 'gym/foreign:NanReward-v0' at frame 5 of an episode; allowed: a "
    "finite number; in step 5; there is no checkpoint yet",
    "InfiniteReward": "reward: inf is not allowed, given by 'gym/foreign:InfiniteReward-v0' at frame 5 of an episode",
    "HugeReward": "reward: 1e+300 is not allowed, given by 'gym/foreign:HugeReward-v0' at frame 5 of an episode",
    "NoReward": "reward: None is not allowed, given by 'gym/foreign:NoReward-v0'; allowed: a finite number; at frame 5",
    "OtherShape": "task: the image of 'gym/foreign:OtherShape-v0' has shape (12, 10, 1); allowed: (10, 10, 1)",
    "OtherType": "task: the image of 'gym/foreign:OtherType-v0' is float32 of shape (10, 10, 1); allowed: uint8",
    "OtherRange": "task: the image of 'gym/foreign:OtherRange-v0' has the value 9; allowed: 0 to 1, as its observation",
    "NoImage": "task: the image of 'gym/foreign:NoImage-v0' is no array; allowed: uint8",
    "OldStep": "step: a tuple of 4 is returned by 'gym/foreign:OldStep-v0'; allowed: a tuple (observation, reward, ",
    "RejectsActions": "environment: 'gym/foreign:RejectsActions-v0' failed at frame ",
    "RaisesInReset": "environment: 'gym/foreign:RaisesInReset-v0' failed at frame 0 of an episode, in reset(seed=",
    "Exits": "environment: 'gym/foreign:Exits-v0' failed at frame 5 of an episode, with the action ",
}


@pytest.mark.parametrize("name", SAID)
def test_what_comes_from_an_environment_is_checked(name: str, commands: Commands) -> None:
    commands.copy("foreign.py", "foreign.py")
    words = ["train", f"gym/foreign:{name}-v0", *hostile.GYM, "--quiet", "--run-dir", "new"]
    assert commands.complaint(*words, code=1).startswith(SAID[name])
    for log in (commands.folder / "new").glob("*.jsonl"):
        for line in log.read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)


def test_an_environment_that_never_ends_is_truncated_with_a_notice(commands: Commands) -> None:
    commands.copy("foreign.py", "foreign.py")
    flags = ["--eval-every=0", "--eval-episodes=1", "--quiet", "--run-dir", "new"]
    ended = commands.run("train", "gym/foreign:Endless-v0", *hostile.GYM, *flags, seconds=HANG)
    assert (ended.code, ended.killed) == (0, "")
    assert ended.err == (
        "playvirtual: gym/foreign:Endless-v0 declares no time limit (max_episode_steps): episodes that are scored are "
        "truncated after 5,000 frames at the latest; --max-episode-frames sets another limit\n"
    )
    line = json.loads(Path(commands.folder, "new", "evaluations.jsonl").read_text())
    assert line["returns"] == [5_000.0]
