"""What an update of every baseline must be to be captured and compiled: whole graphs, in place, repeatable."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from playvirtual.agents.agent import Agent
from playvirtual.config.baselines import METHODS
from tests.agents.baseline_agents import (
    CONTINUOUS,
    A,
    B,
    rainbow_agent,
    rainbow_batch,
    sac_agent,
    sac_batch,
    schedule_at,
)

AGENTS = [(method, kind) for method, (agents, _, _) in METHODS.items() for kind in agents]
EACH = pytest.mark.parametrize(("method", "kind"), AGENTS)


def made(method: str, kind: str, seed: int = 0) -> tuple[Agent, Any]:
    """An agent, with two virtual trajectories of two steps where the method has any, and a batch for it."""
    options = {"K": 2, "M": 2} if method.endswith("virtual") else {}
    if kind == "discrete":
        agent = rainbow_agent(method, seed=seed, **options)
        return agent, rainbow_batch(agent)
    agent = sac_agent(method, seed=seed, **{} if method.startswith("drq") else {"crop_size": 7}, **options)
    return agent, sac_batch(agent)


def tensors(state: Any, name: str = "") -> dict[str, torch.Tensor]:
    """Every tensor of a nested state by its path."""
    if isinstance(state, torch.Tensor):
        return {name: state}
    pairs = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list | tuple) else ()
    return {path: t for key, value in pairs for path, t in tensors(value, f"{name}.{key}").items()}


@EACH
def test_losses_are_compiled_without_a_break(method: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as whole graphs by `compile`, two updates give what eager ones give."""
    eager, batch = made(method, kind)
    compiled, _ = made(method, kind)
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager", fullgraph=True))
    compiled.compile()
    for number in range(2):
        metrics = [agent.update(batch, schedule_at(agent, 50, number)).metrics for agent in (eager, compiled)]
        for name, value in metrics[0].items():
            torch.testing.assert_close(metrics[1][name], value, msg=name)
    torch._dynamo.reset()


@pytest.mark.parametrize("method", ["playvirtual", "sac-ae", "curl", "drq"])
def test_layers_that_autocast_leaves_out_have_float32_gradients(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the backward passes of SAC's compiled losses: the last layers' products and CURL's similarities, no others.

    A product's sizes tell the layer: Q has 1 output and the policy 2 A, as no other layer has; similarities are of B
    states of B dimensions each.
    """
    assert CONTINUOUS["latent"] == B
    products: dict[torch.dtype, set[frozenset[int]]] = {torch.float32: set(), torch.bfloat16: set()}

    def record(module: torch.fx.GraphModule, inputs: Any) -> Any:
        for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
            one, other = (operand.meta["val"] for operand in node.args)
            products[one.dtype].add(frozenset((*one.shape, *other.shape)))
        return make_boxed_func(module)

    agent, batch = made(method, "continuous")
    agent.bf16 = True  # type: ignore[attr-defined]
    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=lambda module, inputs: make_boxed_func(module), bw_compiler=record)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend, fullgraph=True))
    agent.compile()
    agent.update(batch, schedule_at(agent, 50, 0))
    torch._dynamo.reset()
    hidden, whole = CONTINUOUS["hidden"], products[torch.float32]
    samples = 2 * B if method == "drq" else B  # of the critic's loss: DrQ has two views of each
    last = {frozenset({1, samples, hidden}), frozenset({1, B, hidden}), frozenset({2 * A, B, hidden})}
    assert whole == last | ({frozenset({B})} if method == "curl" else set())
    assert frozenset({B, hidden}) in products[torch.bfloat16]
    assert not whole & products[torch.bfloat16]


@EACH
def test_an_update_writes_weights_in_place(method: str, kind: str) -> None:
    """After the first update, in which Adam makes its state, no tensor of the state moves in memory."""
    agent, batch = made(method, kind)
    agent.update(batch, schedule_at(agent, 50, 0))
    before = {name: t.data_ptr() for name, t in tensors(agent.state_dict()).items()}
    for number in range(3):
        agent.update(batch, schedule_at(agent, 50, number))
    assert {name: t.data_ptr() for name, t in tensors(agent.state_dict()).items()} == before


@EACH
def test_a_loaded_state_makes_another_agent_the_same(method: str, kind: str) -> None:
    """Two updates, a copy of the state and of the generator, and two more: the same numbers bit by bit."""
    agent, batch = made(method, kind, seed=1)
    other, _ = made(method, kind, seed=2)
    for number in range(2):
        agent.update(batch, schedule_at(agent, 50, number))
    other.load_state_dict(copy.deepcopy(agent.state_dict()))
    assert agent.generator is not None
    assert other.generator is not None
    other.generator.set_state(agent.generator.get_state())
    for number in range(2, 4):
        one, two = (a.update(batch, schedule_at(a, 60, number)).metrics for a in (agent, other))
        for name, value in one.items():
            assert torch.equal(value, two[name]), name
    ours, theirs = tensors(agent.state_dict()), tensors(other.state_dict())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
