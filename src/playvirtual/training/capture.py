"""Turning much work into one launch: CUDA graphs, captured once per phase and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

WARM_UPS = 3  # eager runs before a capture, so that libraries have chosen their kernels


class CapturedPhases:
    """Calls `work(phase)`; on CUDA, after a few ordinary calls of a phase, replays it as one graph.

    Every call does the work exactly once, captured or not, so capturing changes nothing but speed. `work` must
    have static shapes, must not wait for the device, must draw random numbers from `generators` alone, and must
    keep what outlives the call in tensors that it writes in place.
    """

    def __init__(
        self, work: Callable[[int], None], device: torch.device, generators: Sequence[torch.Generator]
    ) -> None:
        self._work, self._generators = work, generators
        self._calls: dict[int, int] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._stream = torch.cuda.Stream(device)

    def __call__(self, phase: int) -> None:
        if phase not in self._graphs:
            calls = self._calls[phase] = self._calls.get(phase, 0) + 1
            if calls <= WARM_UPS:
                self._eagerly(phase)
                return
            self._graphs[phase] = self._capture(phase)
        self._graphs[phase].replay()

    def _eagerly(self, phase: int) -> None:
        # Warm-ups run on a side stream because a capture will.
        current = torch.cuda.current_stream(self._stream.device)  # of this device, which need not be the first
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._work(phase)
        current.wait_stream(self._stream)

    def _capture(self, phase: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, stream=self._stream):
            self._work(phase)
        # Beginning a capture sets the generators' places on the device, on the side stream: the first replay sets them
        # on the current one and must come later, or it draws the numbers of a generator that has drawn none.
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        return graph
