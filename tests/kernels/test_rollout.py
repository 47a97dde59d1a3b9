"""The fused kernels against the plain module: values and every gradient."""

import pytest
import torch

from playvirtual import kernels
from playvirtual.method import ConvDynamics, DiscreteActions
from tests.interpreted import interpreted, needs_triton
from tests.kernels.errors import worst


def relative_errors(device: str) -> dict[str, float]:
    """Fused against step by step on one small model: all states of a first batch, the last ones of a second."""
    from playvirtual.kernels import rollout
    from playvirtual.kernels.triton import rollout_triton

    rollout.rollout_triton = rollout_triton  # under the interpreter there is no GPU, for which it would be imported
    if device == "cpu":
        kernels.use_persistent(False)
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
        states, last, _ = rollout.fused(z, actions, model.action_maps(H, W), *weights, num_kept=first)
        return states, last

    errors: dict[str, float] = {}
    for first in (0, 2, N):
        found = []
        for compute in (plain, by_kernels):
            model.zero_grad()
            z = start.clone().requires_grad_()
            states, last = compute(z, first)
            ((states * upstream[:, :first]).sum() + (last * upstream[-1, first:]).sum()).backward()
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            assert z.grad is not None
            found.append({"states": states.detach(), "last": last.detach(), "z": z.grad, **gradients})
        for name, expected in found[0].items():
            if expected.numel():
                errors[f"{first} {name}"] = float((found[1][name] - expected).norm() / expected.norm())
    return errors


def badly_declared() -> int:
    """How many of PyTorch's own checks of the operators fail: schemas, gradients' registration, shapes, tracing."""
    from torch.library import opcheck

    from playvirtual.kernels.triton import (
        categorical_triton,
        convolution_triton,
        crop_triton,
        gather_triton,
        rollout_triton,
    )

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape).requires_grad_()

    torch.manual_seed(0)
    C, A, N, K, H, W = 16, 3, 5, 2, 4, 3
    images = torch.randint(256, (3, 9, 14, 14), dtype=torch.uint8)
    crops = (images, torch.randint(0, 4, (5, 2)), torch.randint(3, (5,)), torch.rand(5), 10, 2, False)
    inner = torch.randn(C, C + A, 3, 3)[:, :C].requires_grad_()
    samples = torch.randint(A, (4,)), torch.randn(4), torch.rand(4)
    model = (random(A, H * W * C), inner, random(C), random(C), random(C, C, 3, 3), random(C))
    calls = [
        *((crop_triton.crop_op, (*crops, low)) for low in (False, True)),
        (gather_triton.gather_rows_op, (images, torch.tensor([[2, 0], [1, 1]]))),
        (convolution_triton.conv_relu_op, (random(2, 6, 6, 40), random(32, 2, 2, 40), random(32), 1)),
        (convolution_triton.relu_backward_op, (torch.rand(2, 5, 5, 32), torch.rand(2, 5, 5, 32))),
        (categorical_triton.q_learning_op, (random(4, A, 7), *torch.randn(2, 4, A, 7), *samples, torch.arange(7.0))),
        *(
            (rollout_triton.rollout, (random(N, H * W, C), torch.randint(A, (N, K)), *model, first, H, W))
            for first in (0, 2, N)
        ),
    ]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    results = [
        opcheck(call, arguments, test_utils=checks, raise_exception=False, atol=1e-3, rtol=1e-3)
        for call, arguments in calls
    ]
    return sum(outcome != "SUCCESS" for result in results for outcome in result.values())


@pytest.mark.slow
@needs_triton
def test_operators_are_what_they_declare() -> None:
    assert interpreted("tests.kernels.test_rollout", "badly_declared()") == 0


@pytest.mark.slow
@needs_triton
def test_interpreted_kernels_compute_the_same_values_and_gradients() -> None:
    assert interpreted("tests.kernels.test_rollout", "worst(relative_errors('cpu').values())") < 1e-5


@pytest.mark.skipif(not kernels.AVAILABLE, reason="no GPU with Triton")
def test_compiled_kernels_compute_the_same_values_and_gradients() -> None:
    assert worst(relative_errors("cuda").values()) < 1e-4


def test_without_a_gpu_a_rollout_goes_step_by_step() -> None:
    torch.manual_seed(0)
    model, z, actions = ConvDynamics(16, DiscreteActions(3)), torch.rand(2, 16, 4, 4), torch.randint(3, (2, 3))
    first, second = (model(z, actions[:, 0]) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(model.rollout(z, actions)[:, 0], first)


def test_running_statistics_follow_like_single_steps() -> None:
    torch.manual_seed(0)
    one, many = ConvDynamics(16, DiscreteActions(3)), ConvDynamics(16, DiscreteActions(3))
    sums = []
    for _ in range(4):
        x = torch.rand(5, 16, 3, 3)
        one.bn(x)
        sums.append(torch.stack([x.sum((0, 2, 3)), x.square().sum((0, 2, 3))]))
    many.update_running_statistics(torch.stack(sums), 5 * 9)
    torch.testing.assert_close(many.bn.running_mean, one.bn.running_mean)
    torch.testing.assert_close(many.bn.running_var, one.bn.running_var)
