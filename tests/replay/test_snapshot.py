"""Frames as files: what is written is what is restored, and a file's name stands for its content."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playvirtual.replay import ReplayBuffer, restore_snapshot, snapshot, snapshot_files
from tests.replay.storing import store

SHAPE = (1, 2, 5)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    """Chunks of 4 frames."""
    patch = pytest.MonkeyPatch()
    patch.setattr(snapshot, "CHUNK_BYTES", 40)
    yield
    patch.undo()


def add(replay: ReplayBuffer, count: int) -> None:
    for _ in range(count):
        random = np.random.default_rng(replay.num_added)
        store(replay, random.integers(256, size=SHAPE).astype(np.uint8), 0, 0.0, terminated=False)


def contents(replay: ReplayBuffer) -> dict[str, bytes]:
    return {name: content() for name, content in snapshot_files(replay)}


@settings(max_examples=60)
@given(st.integers(1, 15), st.integers(0, 40))
def test_restored_frames_equal_the_stored_ones(capacity: int, count: int) -> None:
    one, two = ReplayBuffer(capacity, SHAPE, 1, None), ReplayBuffer(capacity, SHAPE, 1, None)
    add(one, count)
    files = contents(one)
    assert len(files) == -(-len(one) // 4)
    two.load_state_dict(one.state_dict())
    restore_snapshot(two, files.__getitem__)
    assert torch.equal(two.frames, one.frames)


@settings(max_examples=60)
@given(st.integers(1, 15), st.lists(st.integers(1, 9), min_size=2, max_size=8))
def test_the_same_name_means_the_same_content(capacity: int, counts: list[int]) -> None:
    replay = ReplayBuffer(capacity, SHAPE, 1, None)
    known: dict[str, bytes] = {}
    for count in counts:
        add(replay, count)
        files = contents(replay)
        assert all(known.setdefault(name, content) == content for name, content in files.items())


def test_only_chunks_with_new_frames_get_new_names() -> None:
    replay = ReplayBuffer(12, SHAPE, 1, None)
    add(replay, 10)
    before = contents(replay)
    assert list(before) == [
        "frames-000000000-000000000004.zlib",
        "frames-000000004-000000000008.zlib",
        "frames-000000008-000000000010.zlib",
    ]
    add(replay, 3)  # fills the third chunk and wraps around to the first
    after = contents(replay)
    assert set(after) - set(before) == {"frames-000000000-000000000013.zlib", "frames-000000008-000000000012.zlib"}


def test_files_of_another_size_are_refused() -> None:
    one, two = ReplayBuffer(8, SHAPE, 1, None), ReplayBuffer(8, (1, 3, 5), 1, None)
    add(one, 3)
    two.load_state_dict(one.state_dict())
    (content,) = contents(one).values()
    with pytest.raises(ValueError, match="cannot reshape"):
        restore_snapshot(two, lambda name: content)
