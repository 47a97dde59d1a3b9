"""The file of the acting network computes what the agent does, for any number of observations."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch

import playvirtual as pv
from playvirtual.runs.portable import FORMATS, example, outputs, portable_policy
from tests.runs.untrained_export import write_export

ATARI = {"channels": "4,8", "kernel_sizes": "8,3", "strides": "6,2", "hidden": 16, "method": "rl"}
TASKS = {"toy/catch": {}, "toy/reach": {"frame_stack": 3, "image_size": 16, "crop_size": 12}, "atari/pong": ATARI}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    where = tmp_path_factory.mktemp("portable")
    return {task: write_export(where / task, task, **options) for task, options in TASKS.items()}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", FORMATS)
def test_both_agree_on_random_observations(kind: str, task: str, exports: dict[str, Path]) -> None:
    """Also where another number of observations takes another path through the network."""
    if kind == "onnx":
        pytest.importorskip("onnx")
        runtime = pytest.importorskip("onnxruntime")
    agent = pv.load(exports[task], "cpu").unwrapped
    _, content = portable_policy(agent, kind)
    for count in (1, 3, 64):
        seen = example(agent, count, seed=count)
        if kind == "torchscript":
            found = [each.numpy() for each in outputs(torch.jit.load(io.BytesIO(content))(seen))]
        else:
            session = runtime.InferenceSession(content)
            assert [each.name for each in session.get_inputs()] == ["observation"]
            found = session.run(None, {"observation": seen.numpy()})
        actions = agent.act(seen).numpy()
        assert found[0].shape == actions.shape
        if task == "toy/reach":
            np.testing.assert_allclose(found[0], actions, atol=1e-5)
        else:
            np.testing.assert_allclose(found[1], agent.action_values(seen).numpy(), atol=1e-5)  # type: ignore[attr-defined]
            np.testing.assert_array_equal(found[0], actions)


def test_an_export_has_the_file_beside_what_load_takes(exports: dict[str, Path], tmp_path: Path) -> None:
    out = pv.export(exports["toy/catch"], tmp_path / "agent", format="torchscript")
    assert (out / "policy.pt").is_file()
    frame = np.eye(10, dtype=np.uint8) * 255
    assert pv.load(out, "cpu").act(frame) == pv.load(exports["toy/catch"], "cpu").act(frame)
    network = torch.jit.load(out / "policy.pt")
    assert int(network(torch.from_numpy(frame)[None, None])[0]) == pv.load(out, "cpu").act(frame)


def test_an_unknown_format_is_one_line_and_writes_nothing(exports: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(pv.InputError, match="format: 'onx' is not known; did you mean 'onnx'"):
        pv.export(exports["toy/catch"], tmp_path / "agent", format="onx")
    assert not (tmp_path / "agent").exists()


def test_a_missing_package_is_one_line(exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("playvirtual.runs.portable.find_spec", lambda name: None)
    with pytest.raises(pv.InputError, match="format: onnx is not installed; in a clone: "):
        portable_policy(pv.load(exports["toy/catch"], "cpu").unwrapped, "onnx")


def test_an_agent_that_remembers_is_refused(exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace would hold what the agent remembered then."""
    agent = pv.load(exports["toy/reach"], "cpu").unwrapped
    calls = iter(range(100))
    monkeypatch.setattr(agent, "act", lambda observation: observation.float().mean((1, 2, 3)) + next(calls))
    with pytest.raises(pv.InputError, match="depends on more than the observation"):
        portable_policy(agent, "torchscript")
