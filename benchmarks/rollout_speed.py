"""Times rollouts of the convolutional dynamics alone: forward, back, and the products for the parameters' gradients.

python benchmarks/rollout_speed.py [--batch 32] [--K 9] [--M 12,36] [--repeats 9] [--out FILE.json]
For every M, the batch's recorded trajectories and M virtual ones of each roll out together (forward model), then the
virtual ones alone (backward model), in bf16 on a GPU, by one launch for all steps where the GPU can, and by one launch
per step. Every call is captured 20 times into a CUDA graph; the figures are medians over the graph's launches, and the
TFLOP/s those of 49 positions, without any padding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median

import torch
from script import Parser, new_file, run, whole
from torch import Tensor

from playvirtual import kernels
from playvirtual.errors import InputError
from playvirtual.method import ConvDynamics, DiscreteActions

CHANNELS, SIDE, ACTIONS = 64, 7, 6
CAPTURED = 20


def microseconds(call: Callable[[], object], repeats: int) -> float:
    """Median time of one call, by launches of a graph of many."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CAPTURED):
            call()
    graph.replay()
    found = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1000 / CAPTURED)
    return median(found)


def calls(samples: int, num_kept: int, K: int, *, persistent: bool) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    from playvirtual.kernels.hopper import gradients_hopper, rollout_hopper
    from playvirtual.kernels.triton import rollout_triton

    torch.manual_seed(0)
    model = ConvDynamics(CHANNELS, DiscreteActions(ACTIONS)).cuda()
    assert model.conv2.bias is not None
    positions = SIDE * SIDE
    maps = model.action_maps(SIDE, SIDE).detach()
    w1, w2 = model.conv1.weight.detach()[:, :CHANNELS], model.conv2.weight.detach()
    gamma, beta, bias = (p.detach() for p in (model.bn.weight, model.bn.bias, model.conv2.bias))
    z = torch.rand(samples, positions, CHANNELS, device="cuda").bfloat16()
    actions = torch.randint(ACTIONS, (samples, K), device="cuda")
    g_kept = torch.randn(K, num_kept, positions, CHANNELS, device="cuda").bfloat16() if num_kept else None
    g_last = torch.randn(samples - num_kept, positions, CHANNELS, device="cuda").bfloat16()
    weights = (w1, gamma, beta, w2, bias)

    def there() -> list[Tensor]:
        found: list[Tensor]
        if persistent:
            found = rollout_hopper.rollout(z, actions, maps, *weights, num_kept)
        else:
            found = rollout_triton.rollout(z, actions, maps, *weights, num_kept, SIDE, SIDE)
        return found

    kept = there()[2:]

    def back() -> list[Tensor]:
        found: list[Tensor]
        if persistent:
            x1, states, _, work, filters = kept
            found = rollout_hopper.rollout_backward(g_kept, g_last, gamma, x1, states, work, filters, num_kept)
        else:
            states, x1, _, sums, ranges, places, flipped = kept
            given = (g_kept, g_last, gamma, states, x1, sums, ranges, places, flipped)
            found = rollout_triton.rollout_backward(*given, num_kept, SIDE, SIDE)
        return found

    _, dx, du, totals = back()

    def gradients() -> object:
        if persistent:
            x1, states, lines, *_ = kept
            given = (actions, maps, w1, w2, states, x1, lines, dx, du, totals)
            return gradients_hopper.parameter_gradients(*given, num_kept)
        starts, _, y, *_ = kept
        given = (actions, maps, w1, w2, starts[:-1], y, dx, du, totals)
        return rollout_triton.parameter_gradients(*given, SIDE, SIDE)

    return {"forward": there, "back": back, "parameters": gradients}


def main() -> None:
    """Prints one line per rollout, way and kind of kernel."""
    parser = Parser(__doc__)
    parser.add_argument("--batch", type=whole(1), default=32, help="recorded trajectories (default: %(default)s)")
    parser.add_argument("--K", type=whole(1), default=9, help="steps (default: %(default)s)")
    parser.add_argument("--M", default="12,36", help="virtual trajectories of each, with commas (default: %(default)s)")
    parser.add_argument("--repeats", type=whole(1), default=9, help="launches of a graph (default: %(default)s)")
    parser.add_argument("--out", type=new_file, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args()
    numbers = options.M.split(",")
    if not all(text.isdecimal() for text in numbers):
        raise InputError(f"M: {options.M!r} is not allowed; allowed: whole numbers with commas")
    if not kernels.AVAILABLE:
        raise InputError("this machine has no GPU with Triton")
    from playvirtual.kernels.hopper import rollout_hopper

    device = torch.device("cuda", torch.cuda.current_device())
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, batch {options.batch}, K = {options.K}, bf16")
    rows = []
    for M in map(int, numbers):
        for num_kept in (options.batch, 0):
            samples = options.batch * M + num_kept
            if not samples:
                continue
            flops = 2 * 2 * 9 * CHANNELS**2 * SIDE**2 * samples * options.K
            size = (samples, CHANNELS, SIDE, SIDE)
            can = rollout_hopper.usable(device, torch.bfloat16, size, ACTIONS)
            for persistent in (True, False) if can else (False,):
                for name, call in calls(samples, num_kept, options.K, persistent=persistent).items():
                    time = microseconds(call, options.repeats)
                    how = "one launch" if persistent else "per step"
                    tflops = flops / time / 1e6
                    speed = f"{time:8.1f} µs {tflops:7.1f} TFLOP/s"
                    print(f"M {M:<3} N {samples:<5} {how:<11} {name:<11} {speed}", flush=True)
                    rows.append({"M": M, "N": samples, "kernels": how, "way": name, "us": time, "tflops": tflops})
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    run(main)
