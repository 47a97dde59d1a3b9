"""The acting network as one file that runs without this package: TorchScript or ONNX."""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from playvirtual.agents.agent import Agent, ValuesActions
from playvirtual.envs.observations import ObservedParts
from playvirtual.errors import InputError, in_one_line, install_hint, unknown

TOLERANCE = 1e-5  # between the agent and its file, which sum in the same precision


class PolicyNetwork(nn.Module):
    """(N, C, H, W) uint8 stacks of frames -> the greedy actions and, of an agent that has them, the values of all.

    Discrete actions are (N,) and their values (N, |A|); continuous ones are (N, A).
    """

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: agent.parts[name] for name in agent.policy_parts})
        self._agent = agent

    def forward(self, observation: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        if isinstance(self._agent, ValuesActions):
            values = self._agent.action_values(observation)
            return values.argmax(-1), values
        return self._agent.act(observation)


class PartsNetwork(nn.Module):
    """The acting network of an agent that has learned from an image and numbers beside it, which become planes here.

    `image` is (N, depth·C, H, W) of uint8, the images of the last `depth` frames in the agent's colors and size;
    `numbers` (N, depth, n) of float64, the numbers of the same frames as the environment gives them, vector after
    vector. NaN stands for the numbers of a frame before the episode's first one, where the stack is filled with zeros.
    """

    low: Tensor
    high: Tensor
    bounded: Tensor

    def __init__(self, agent: Agent, parts: ObservedParts) -> None:
        super().__init__()
        self.network = PolicyNetwork(agent)
        for name in ("low", "high", "bounded"):
            self.register_buffer(name, torch.from_numpy(getattr(parts, name)))

    def forward(self, image: Tensor, numbers: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        squashed = torch.where(self.bounded, numbers, numbers / (1 + numbers.abs()))
        place = (torch.minimum(torch.maximum(squashed, self.low), self.high) - self.low) / (self.high - self.low)
        shades = torch.where(numbers.isnan(), 0.0, torch.round(255 * place)).to(torch.uint8)
        depth = numbers.shape[1]
        planes = shades[..., None, None].expand(-1, -1, -1, *image.shape[-2:])
        frames = torch.cat([image.unflatten(1, (depth, image.shape[1] // depth)), planes], 2)
        return self.network(frames.flatten(1, 2))  # type: ignore[no-any-return]


Inputs = dict[str, Tensor]  # of a network, by the names that its file gives them


class Portable(NamedTuple):
    """One format: the file's name, and how its bytes are made of a network and an example of its inputs."""

    file: str
    write: Callable[[nn.Module, Inputs], bytes]


def portable_policy(
    agent: Agent, kind: str, parts: ObservedParts | None = None, frame_stack: int = 1
) -> tuple[str, bytes]:
    """The name and the content of the file of that format; an InputError for an agent that cannot be written so.

    `parts` are those of observations that are a Dict, of which the agent sees `frame_stack` at once.
    """
    if kind not in FORMATS:
        raise unknown("format", kind, ["safetensors", *FORMATS])
    network: nn.Module = PolicyNetwork(agent)
    inputs = {"observation": example(agent, 2)}
    if parts is not None and parts.count:
        network, inputs = PartsNetwork(agent, parts), example_parts(agent, parts, frame_stack, 2)
    network.eval()
    with warnings.catch_warnings():
        # Shape checks are constants of a trace, which is what they should be; PyTorch warns of each.
        warnings.simplefilter("ignore")
        try:
            return FORMATS[kind].file, FORMATS[kind].write(network, inputs)
        except InputError:
            raise
        except Exception as error:  # whatever a registered agent does that a trace cannot follow
            raise InputError(
                f"format: the agent's `act` cannot be written as {kind} ({in_one_line(error)}); allowed: safetensors"
            ) from error


def example(agent: Agent, count: int, seed: int = 0) -> Tensor:
    """Random observations of the agent's shape."""
    random = torch.Generator().manual_seed(seed)
    shape = (count, *agent.observation_shape)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=random)


def example_parts(agent: Agent, parts: ObservedParts, frame_stack: int, count: int, seed: int = 0) -> Inputs:
    """Random images and numbers, some of them beyond their bounds; the numbers of the oldest frame are missing."""
    planes = parts.count * frame_stack
    numbers = torch.randn(count, frame_stack, parts.count, generator=torch.Generator().manual_seed(seed)).double()
    middle, reach = (torch.from_numpy(part) for part in ((parts.low + parts.high) / 2, parts.high - parts.low))
    numbers = middle + reach * numbers
    if frame_stack > 1:
        numbers[:, 0] = torch.nan
    return {"image": example(agent, count, seed)[:, planes:], "numbers": numbers}


def outputs(found: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """What a network returned, always as a tuple."""
    return found if isinstance(found, tuple) else (found,)


@torch.no_grad()
def _torchscript(network: nn.Module, inputs: Inputs) -> bytes:
    # Frozen: weights as constants, so that nothing in it asks for gradients.
    traced = torch.jit.freeze(torch.jit.trace(network, tuple(inputs.values()), check_trace=False))
    # A trace follows one path through Python: another number of observations must take the same one.
    other = [torch.cat([each] * 20) for each in inputs.values()]
    for wanted, found in zip(outputs(network(*other)), outputs(traced(*other)), strict=True):
        if not torch.allclose(wanted.double(), found.double(), atol=TOLERANCE):
            raise InputError("format: the agent's `act` depends on more than the observation; allowed: safetensors")
    buffer = io.BytesIO()
    torch.jit.save(traced, buffer)
    return buffer.getvalue()


@torch.no_grad()
def _onnx(network: nn.Module, inputs: Inputs) -> bytes:
    if find_spec("onnx") is None:
        raise InputError(f"format: onnx is not installed; {install_hint('onnx')} (torchscript needs none)")
    names = ["action", "values"][: len(outputs(network(*inputs.values())))]
    with tempfile.TemporaryDirectory() as scratch:
        # The exporter by traces: the one by torch.export needs another package and fixes the number of observations.
        torch.onnx.export(
            network,
            tuple(inputs.values()),
            file := f"{scratch}/policy.onnx",
            dynamo=False,
            input_names=list(inputs),
            output_names=names,
            dynamic_axes={name: {0: "N"} for name in (*inputs, *names)},
        )
        return Path(file).read_bytes()


FORMATS = {"torchscript": Portable("policy.pt", _torchscript), "onnx": Portable("policy.onnx", _onnx)}
