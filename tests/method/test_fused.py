"""The fused kernels against the plain module: values and every gradient."""

import pytest
import torch

from playvirtual.method import ConvDynamics, DiscreteActions, kernels
from tests.interpreted import interpreted, needs_triton


def relative_errors(device: str) -> dict[str, float]:
    """Fused against step by step on one small model: all states of a first batch, the last ones of a second."""
    from playvirtual.method import fused

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    C, H, W, A, N, K = 16, 4, 3, 3, 5, 3
    model = ConvDynamics(C, DiscreteActions(A)).to(device)
    torch.nn.init.normal_(model.bn.weight, 1.0, 0.1)
    torch.nn.init.normal_(model.bn.bias, 0.0, 0.1)
    start, actions = torch.rand(N, C, H, W, device=device), torch.randint(A, (N, K), device=device)
    upstream = torch.randn(K, N, C, H, W, device=device)

    def plain(z: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        ends, all_states = [], []
        for part in (slice(0, first), slice(first, N)):
            x, states = z[part], []
            if len(x):
                for a in actions[part].unbind(1):
                    x = model(x, a)
                    states.append(x)
            ends.append(x)
            all_states.append(torch.stack(states) if states else z.new_zeros(K, 0, C, H, W))
        return all_states[0], ends[1]

    def by_kernels(z: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        assert model.conv2.bias is not None
        weights = (model.conv1.weight[:, :C], model.bn.weight, model.bn.bias, model.conv2.weight, model.conv2.bias)
        ahead, last, _ = fused.rollout(z, actions, model.action_maps(H, W), *weights, first=first)
        return ahead, last

    errors: dict[str, float] = {}
    for first in (0, 2, N):
        found = []
        for compute in (plain, by_kernels):
            model.zero_grad()
            z = start.clone().requires_grad_()
            ahead, last = compute(z, first)
            ((ahead * upstream[:, :first]).sum() + (last * upstream[-1, first:]).sum()).backward()
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            assert z.grad is not None
            found.append({"ahead": ahead.detach(), "last": last.detach(), "z": z.grad, **gradients})
        for name, expected in found[0].items():
            if expected.numel():
                errors[f"{first} {name}"] = float((found[1][name] - expected).norm() / expected.norm())
    return errors


def badly_declared() -> int:
    """How many of PyTorch's own checks of the operators fail: schemas, gradients' registration, shapes, tracing."""
    from torch.library import opcheck

    from playvirtual.agents import fused_convolution
    from playvirtual.method import fused
    from playvirtual.replay import fused_cut

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape).requires_grad_()

    torch.manual_seed(0)
    C, A, N, K, H, W = 16, 3, 5, 2, 4, 3
    images = torch.randint(256, (3, 9, 14, 14), dtype=torch.uint8)
    windows = (images, torch.randint(0, 4, (5, 2)), torch.randint(3, (5,)), torch.rand(5), 10, 2, False)
    inner = torch.randn(C, C + A, 3, 3)[:, :C].requires_grad_()
    model = (random(A, H * W * C), inner, random(C), random(C), random(C, C, 3, 3), random(C))
    calls = [
        *((fused_cut._windows, (*windows, low)) for low in (False, True)),
        (fused_convolution._forward, (random(2, 6, 6, 40), random(32, 2, 2, 40), random(32), 1)),
        (fused_convolution._through_relu, (torch.rand(2, 5, 5, 32), torch.rand(2, 5, 5, 32))),
        *(
            (fused._rollout, (random(N, H * W, C), torch.randint(A, (N, K)), *model, first, H, W))
            for first in (0, 2, N)
        ),
    ]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    results = [
        opcheck(call, arguments, test_utils=checks, raise_exception=False, atol=1e-3, rtol=1e-3)
        for call, arguments in calls
    ]
    return sum(outcome != "SUCCESS" for result in results for outcome in result.values())


@needs_triton
def test_operators_are_what_they_declare() -> None:
    assert interpreted("tests.method.test_fused", "badly_declared()") == 0


@needs_triton
def test_interpreted_kernels_compute_the_same_values_and_gradients() -> None:
    assert interpreted("tests.method.test_fused", "max(relative_errors('cpu').values())") < 1e-5


@pytest.mark.skipif(not kernels.AVAILABLE, reason="no GPU with Triton")
def test_compiled_kernels_compute_the_same_values_and_gradients() -> None:
    assert max(relative_errors("cuda").values()) < 1e-4


def test_without_a_gpu_the_steps_are_taken_one_by_one() -> None:
    model = ConvDynamics(16, DiscreteActions(3))
    assert model.unroll_two_batches(torch.rand(2, 16, 4, 4), torch.zeros(2, 3, dtype=torch.int64), 2) is None


def test_running_statistics_follow_like_single_steps() -> None:
    torch.manual_seed(0)
    one, many = ConvDynamics(16, DiscreteActions(3)), ConvDynamics(16, DiscreteActions(3))
    sums = []
    for _ in range(4):
        x = torch.rand(5, 16, 3, 3)
        one.bn(x)
        sums.append(torch.stack([x.sum((0, 2, 3)), x.square().sum((0, 2, 3))]))
    many._follow_statistics(torch.stack(sums), 5 * 9)
    torch.testing.assert_close(many.bn.running_mean, one.bn.running_mean)
    torch.testing.assert_close(many.bn.running_var, one.bn.running_var)
