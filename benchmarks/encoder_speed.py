"""Times Rainbow's encoder on shifted views of Atari's images, without gradient, as targets and cycles need it.

python benchmarks/encoder_speed.py [--views 736,1504] [--repeats 15] [--out FILE.json]
Once the views are made in memory and go through one convolution after the other, once a kernel shifts and convolves
them (a Hopper GPU in bf16). Both are compiled, captured 20 times into a CUDA graph, and timed one after the other; the
figures are medians over the graph's launches. 736 views are those of an update of Pong (M = 12), 1,504 those of Alien
(M = 36).
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from rollout_speed import microseconds
from script import Parser, new_file, run, whole
from torch import Tensor

from playvirtual import kernels
from playvirtual.agents.networks.rainbow import RainbowEncoder
from playvirtual.errors import InputError
from playvirtual.replay.augmentation import RandomShift

IMAGES = 352  # of a batch of 32: s_t … s_{t+9} and s_{t+n}


def calls(views: int) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    generator = torch.Generator("cuda").manual_seed(0)
    encoder = RainbowEncoder((4, 84, 84), (32, 64, 64), (8, 4, 3), (4, 2, 1), 0).cuda()
    augment = RandomShift(4, 0.05, space_to_depth=4)
    images = torch.randint(256, (IMAGES, 4, 84, 84), dtype=torch.uint8, generator=generator, device="cuda")
    randoms = augment.draw(views, images.device, generator)
    source = torch.randint(IMAGES, (views,), generator=generator, device="cuda")

    @torch.compile
    def in_memory() -> Tensor:
        z: Tensor = encoder(augment(images, randoms, source))
        return z

    @torch.compile
    def at_once() -> Tensor:
        return encoder.encode_views(augment, images, randoms, source)

    def low_precision(encode: Callable[[], Tensor]) -> Callable[[], Tensor]:
        @torch.no_grad()
        def call() -> Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return encode()

        return call

    return {"views in memory": low_precision(in_memory), "at once": low_precision(at_once)}


def main() -> None:
    """Prints one line per number of views and way."""
    parser = Parser(__doc__)
    parser.add_argument("--views", default="736,1504", help="views, with commas (default: %(default)s)")
    parser.add_argument("--repeats", type=whole(1), default=15, help="launches of a graph (default: %(default)s)")
    parser.add_argument("--out", type=new_file, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args()
    numbers = options.views.split(",")
    if not all(text.isdecimal() and int(text) for text in numbers):
        raise InputError(f"views: {options.views!r} is not allowed; allowed: whole numbers above 0 with commas")
    if not kernels.AVAILABLE:
        raise InputError("this machine has no GPU with Triton")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16")
    rows = []
    for views in map(int, numbers):
        for name, call in calls(views).items():
            time = microseconds(call, options.repeats)
            print(f"{views:5} views, {name:<15} {time:8.1f} µs", flush=True)
            rows.append({"views": views, "way": name, "us": time})
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    run(main)
