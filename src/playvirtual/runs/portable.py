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


class Portable(NamedTuple):
    """One format: the file's name, and how its bytes are made of a network and an example of its input."""

    file: str
    write: Callable[[PolicyNetwork, Tensor], bytes]


def portable_policy(agent: Agent, kind: str) -> tuple[str, bytes]:
    """The name and the content of the file of that format; an InputError for an agent that cannot be written so."""
    if kind not in FORMATS:
        raise unknown("format", kind, ["safetensors", *FORMATS])
    network = PolicyNetwork(agent).eval()
    with warnings.catch_warnings():
        # Shape checks are constants of a trace, which is what they should be; PyTorch warns of each.
        warnings.simplefilter("ignore")
        try:
            return FORMATS[kind].file, FORMATS[kind].write(network, example(agent, 2))
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


def outputs(found: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """What a network returned, always as a tuple."""
    return found if isinstance(found, tuple) else (found,)


@torch.no_grad()
def _torchscript(network: PolicyNetwork, observation: Tensor) -> bytes:
    # Frozen: weights as constants, so that nothing in it asks for gradients.
    traced = torch.jit.freeze(torch.jit.trace(network, (observation,), check_trace=False))
    # A trace follows one path through Python: another number of observations must take the same one.
    other = torch.cat([observation] * 20)
    for wanted, found in zip(outputs(network(other)), outputs(traced(other)), strict=True):
        if not torch.allclose(wanted.double(), found.double(), atol=TOLERANCE):
            raise InputError("format: the agent's `act` depends on more than the observation; allowed: safetensors")
    buffer = io.BytesIO()
    torch.jit.save(traced, buffer)
    return buffer.getvalue()


@torch.no_grad()
def _onnx(network: PolicyNetwork, observation: Tensor) -> bytes:
    if find_spec("onnx") is None:
        raise InputError(f"format: onnx is not installed; {install_hint('onnx')} (torchscript needs none)")
    names = ["action", "values"][: len(outputs(network(observation)))]
    with tempfile.TemporaryDirectory() as scratch:
        # The exporter by traces: the one by torch.export needs another package and fixes the number of observations.
        torch.onnx.export(
            network,
            (observation,),
            file := f"{scratch}/policy.onnx",
            dynamo=False,
            input_names=["observation"],
            output_names=names,
            dynamic_axes={name: {0: "N"} for name in ("observation", *names)},
        )
        return Path(file).read_bytes()


FORMATS = {"torchscript": Portable("policy.pt", _torchscript), "onnx": Portable("policy.onnx", _onnx)}
