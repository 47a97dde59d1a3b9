"""Clipped Adam in three launches: the same steps as PyTorch's, whatever the shapes."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from playvirtual import kernels
from playvirtual.agents.optim import load_adam
from playvirtual.kernels.adam import ClippedAdam, clip_grad_norm_by_group, same_memory_order
from tests.interpreted import interpreted, needs_triton
from tests.kernels.errors import worst


class Net(nn.Module):
    """One tensor smaller than a chunk, as large, larger, in channels-last order, in no group, and without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.ParameterList([torch.randn(1), torch.randn(32, 64), torch.randn(5, 1003)])
        self.b = nn.ParameterList([torch.randn(8, 6, 3, 3).contiguous(memory_format=torch.channels_last)])
        self.free = nn.Parameter(torch.randn(7, 11))
        self.still = nn.Parameter(torch.randn(3))

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"a": [*self.a], "none": [self.still], "b": [*self.b]}

    def set_gradients(self, seed: int) -> None:
        torch.manual_seed(seed)
        for p in [*self.a, *self.b, self.free]:
            p.grad = torch.empty_like(p).copy_(torch.randn(p.shape, device=p.device) * 10 ** (seed % 3 - 1))

    def adam(self, betas: tuple[float, float] = (0.9, 0.999)) -> torch.optim.Adam:
        return torch.optim.Adam(self.parameters(), lr=1e-2, betas=betas, eps=1e-5, capturable=self.free.is_cuda)


def largest_error(device: str, limit: float = 3.0, betas: tuple[float, float] = (0.9, 0.999), steps: int = 4) -> float:
    """Of parameters, moments and norms, after steps with gradients below and above the limit."""
    from playvirtual.kernels.triton.adam_triton import FusedClippedAdam

    torch.manual_seed(0)
    plain = Net().to(device)
    fused = copy.deepcopy(plain)
    adams = [net.adam(betas) for net in (plain, fused)]
    errors = []
    descent = None
    copies = [(p, torch.zeros_like(p)) for p in [*fused.a, *fused.b]]
    for step in range(steps):
        norms = []
        for net, adam in zip((plain, fused), adams, strict=True):
            net.set_gradients(step)
            if step == 0 or net is plain:
                norms.append(clip_grad_norm_by_group(net.groups(), limit))
                adam.step()
                continue
            if descent is None:  # as after loading: moments in another order than the parameter
                moments = adam.state[net.b[0]]
                moments["exp_avg"] = moments["exp_avg"].contiguous()
                descent = FusedClippedAdam(adam, net.groups(), limit, copies)
            assert descent.is_valid()
            before = [tensor.clone() for _, tensor in copies]
            norms.append(descent.step(copy=step % 2 == 0))
            expected = [p for p, _ in copies] if step % 2 == 0 else before
            assert all(torch.equal(tensor, q) for (_, tensor), q in zip(copies, expected, strict=True))
        for p, q in zip(plain.parameters(), fused.parameters(), strict=True):
            errors.append(float((p - q).detach().abs().max()))
            if p.grad is not None:
                for name in ("exp_avg", "exp_avg_sq", "step"):
                    one, other = adams[0].state[p][name], adams[1].state[q][name]
                    # With a limit of 0 the moments are 0.
                    errors.append(float((one - other).abs().max() / one.abs().max().clamp_min(1e-30)))
        errors += [abs(float(norms[0][name] - norms[1][name])) / (1 + float(norms[0][name])) for name in norms[0]]
    return worst(errors)


def poisoned() -> float:
    """How many parameters are no numbers after a step with one gradient that is none, beside PyTorch's own."""
    from playvirtual.kernels.triton.adam_triton import FusedClippedAdam

    counts = []
    for fused in (False, True):
        torch.manual_seed(0)
        net = Net()
        adam = net.adam()
        net.set_gradients(0)
        adam.step()
        net.a[1].grad[0, 0] = float("nan")
        if fused:
            FusedClippedAdam(adam, net.groups(), 1.0).step()
        else:
            clip_grad_norm_by_group(net.groups(), 1.0)
            adam.step()
        counts.append([int(p.isnan().sum()) for p in net.parameters()])
    assert counts[0] == counts[1], counts
    return sum(counts[0])


def bits_that_differ() -> int:
    """Between two times the same steps."""
    from playvirtual.kernels.triton.adam_triton import FusedClippedAdam

    found = []
    for _ in range(2):
        torch.manual_seed(0)
        net = Net()
        adam = net.adam()
        net.set_gradients(0)
        adam.step()
        descent = FusedClippedAdam(adam, net.groups(), 1.0)
        for step in range(3):
            net.set_gradients(step)
            descent.step()
        found.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    return int((found[0] != found[1]).sum())


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("settings", ["3.0", "float('inf')", "0.0", "3.0, (0.0, 0.0)"])  # limit, betas
def test_interpreted_kernels_make_the_same_steps(settings: str) -> None:
    assert interpreted("tests.kernels.test_adam", f"largest_error('cpu', {settings})") < 1e-6


@pytest.mark.slow
@needs_triton
def test_a_gradient_that_is_no_number_poisons_what_it_does_in_pytorch() -> None:
    assert interpreted("tests.kernels.test_adam", "poisoned()") > 1


@pytest.mark.slow
@needs_triton
def test_the_same_steps_are_the_same_to_the_bit() -> None:
    assert interpreted("tests.kernels.test_adam", "bits_that_differ()") == 0


@pytest.mark.skipif(not kernels.AVAILABLE, reason="no GPU with Triton")
def test_compiled_kernels_make_the_same_steps() -> None:
    assert largest_error("cuda") < 5e-6


def test_on_the_cpu_it_is_clipping_and_adam() -> None:
    torch.manual_seed(0)
    one = Net()
    other = copy.deepcopy(one)
    adams = [net.adam() for net in (one, other)]
    descent = ClippedAdam(adams[1], other.groups(), 3.0)
    for step in range(3):
        for net in (one, other):
            net.set_gradients(step)
        expected = clip_grad_norm_by_group(one.groups(), 3.0)
        adams[0].step()
        norms = descent.step()
        assert {name: float(norm) for name, norm in norms.items()} == {k: float(v) for k, v in expected.items()}
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_copies_are_made_when_asked_for() -> None:
    torch.manual_seed(0)
    net = Net()
    copies = [(p, torch.zeros_like(p)) for p in (net.free, net.still)]
    descent = ClippedAdam(net.adam(), net.groups(), 3.0, copies)
    net.set_gradients(0)
    descent.step()
    assert not any(tensor.any() for _, tensor in copies)
    descent.step(copy=True)
    assert all(torch.equal(tensor, p) for p, tensor in copies)


@pytest.mark.parametrize("there", [True, False])  # whether the Adam that was saved was on a GPU
def test_moments_come_from_another_kind_of_device_and_settings_do_not(there: bool) -> None:
    net = Net()
    adam = net.adam()
    net.set_gradients(0)
    adam.step()
    state = adam.state_dict()
    state["param_groups"][0]["capturable"] = there
    other = net.adam()
    load_adam(other, state)
    assert other.param_groups[0]["capturable"] is False
    assert torch.equal(other.state[net.free]["exp_avg"], adam.state[net.free]["exp_avg"])
    net.set_gradients(1)
    other.step()


@given(st.lists(st.integers(1, 3), min_size=4, max_size=4), st.permutations(range(4)), st.permutations(range(4)))
def test_order_in_memory_is_the_order_of_the_numbers_there(shape: list[int], one: list[int], other: list[int]) -> None:
    """Also where a dimension is 1, whose stride says nothing: filters over one channel are in both orders at once."""

    def laid_out(order: list[int]) -> tuple[Tensor, Tensor]:
        memory = torch.empty([shape[d] for d in order])
        numbers = memory.permute([order.index(d) for d in range(4)])
        numbers.copy_(torch.arange(float(numbers.numel())).view(shape))
        return numbers, memory.flatten()

    (a, a_memory), (b, b_memory) = laid_out(one), laid_out(other)
    assert torch.equal(a, b)
    assert same_memory_order(a, b) == torch.equal(a_memory, b_memory)
