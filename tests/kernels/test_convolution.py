"""Convolution with ReLU: in blocks, and by the fused kernel, the same as PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from playvirtual import kernels
from playvirtual.kernels.convolution import conv_relu, pad_to_multiple, space_to_depth_size
from playvirtual.kernels.space_to_depth import depth_to_space, space_to_depth
from tests.interpreted import interpreted, needs_triton
from tests.kernels.errors import worst

# N, C, H, C′, side, stride
SHAPES = [(2, 4, 20, 32, 8, 4), (2, 9, 12, 32, 3, 2), (2, 32, 9, 64, 4, 2), (3, 16, 7, 32, 3, 1)]
SHAPES += [(2, 32, 10, 64, 4, 2)]  # its gradient goes over blocks
SHAPES += [(2, 4, 19, 32, 5, 5), (2, 32, 16, 64, 5, 5), (2, 32, 9, 32, 3, 1)]  # of the baselines' encoders


@pytest.mark.parametrize(("side", "stride", "height"), [(8, 4, 20), (3, 2, 12), (4, 2, 10), (3, 1, 7)])
def test_a_convolution_over_blocks_is_the_strided_one(side: int, stride: int, height: int) -> None:
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(3, 5, side, stride)
    x = torch.rand(2, 3, height, height)
    torch.testing.assert_close(conv_relu(space_to_depth(x, stride), conv), F.relu(conv(x)))


def test_blocks_keep_every_pixel_of_a_square_together() -> None:
    x = torch.arange(16).view(1, 1, 4, 4)
    assert space_to_depth(x, 2)[0, :, 0, 1].tolist() == [2, 3, 6, 7, 0, 0, 0, 0]  # rounded up to eight channels
    assert torch.equal(space_to_depth(x, 1), x)


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
def test_depth_to_space_undoes_space_to_depth(size: int, channels: int, height: int, width: int) -> None:
    x = torch.rand(2, channels, height * size, width * size)
    assert torch.equal(depth_to_space(space_to_depth(x, size), size, channels), x)


def test_without_fused_kernels_images_stay_as_they_are() -> None:
    assert space_to_depth_size(torch.nn.Conv2d(4, 32, 8, 4), (4, 84, 84), torch.device("cpu")) == 1


def test_a_stride_that_is_no_power_of_two_or_leaves_pixels_over_has_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as CURL's, 5 on images of 84 × 84."""
    monkeypatch.setattr(kernels, "in_use", lambda: True)
    cuda = torch.device("cuda")
    sizes = {
        stride: space_to_depth_size(torch.nn.Conv2d(4, 32, 8, stride), (4, 84, 84), cuda) for stride in range(1, 9)
    }
    assert sizes == {1: 1, 2: 2, 3: 1, 4: 4, 5: 1, 6: 1, 7: 1, 8: 1}


def relative_errors(device: str) -> dict[str, float]:
    """The kernel against PyTorch: values and every gradient."""
    from playvirtual.kernels.triton import convolution_triton

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    errors = {}
    for N, C, height, out, side, stride in SHAPES:
        conv = torch.nn.Conv2d(C, out, side, stride).to(device)
        images = torch.rand(N, C, height, height, device=device)
        found = []
        for fused in (False, True):
            conv.zero_grad()
            x = images.clone().requires_grad_()
            if fused and C < 16 and height % stride == 0:
                weight = space_to_depth(pad_to_multiple(conv.weight, stride), stride)
                assert conv.bias is not None
                y = convolution_triton.conv_relu(space_to_depth(x, stride), weight, conv.bias, 1)
            elif fused:
                assert conv.bias is not None
                y = convolution_triton.conv_relu(x, conv.weight, conv.bias, stride)
            else:
                y = F.relu(conv(x))
            upstream = torch.linspace(-1, 1, y.numel(), device=device).view(y.shape)
            y.backward(upstream)
            assert x.grad is not None
            found.append([y.detach(), x.grad, *(p.grad.clone() for p in conv.parameters() if p.grad is not None)])
        for name, expected, got in zip(("y", "x", "weight", "bias"), *found, strict=True):
            case = f"{C}->{out}, {side} by {stride} on {height}: {name}"
            errors[case] = float((got - expected).norm() / expected.norm())
    return errors


@pytest.mark.slow
@needs_triton
def test_the_interpreted_kernel_computes_the_same_values_and_gradients() -> None:
    assert interpreted("tests.kernels.test_convolution", "worst(relative_errors('cpu').values())") < 1e-5


@pytest.mark.skipif(not kernels.AVAILABLE, reason="no GPU with Triton")
def test_the_compiled_kernel_computes_the_same_values_and_gradients() -> None:
    assert worst(relative_errors("cuda").values()) < 1e-4


@pytest.mark.skipif(not kernels.AVAILABLE, reason="no GPU with Triton")
def test_large_images_in_half_precision_are_close_whichever_kernel_suits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from playvirtual.kernels.triton import convolution_triton

    torch.manual_seed(0)
    conv = torch.nn.Conv2d(64, 64, 3).cuda()
    assert conv.bias is not None
    x = torch.rand(128, 64, 50, 50, device="cuda").bfloat16()
    expected = F.relu(conv(x.float()))
    for by_cudnn in (True, False):
        if not by_cudnn:
            monkeypatch.setattr(convolution_triton, "LARGE", 2**31)
        assert convolution_triton.suits_cudnn(x.permute(0, 2, 3, 1), conv.weight, 128 * 48 * 48) == by_cudnn
        y = convolution_triton.conv_relu(x, conv.weight, conv.bias, 1)
        assert float((y - expected).norm() / expected.norm()) < 1e-2
