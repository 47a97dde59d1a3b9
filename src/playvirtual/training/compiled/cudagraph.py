"""CUDA graphs: work that is captured once per kind and replayed by one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

WARM_UPS = 3  # eager runs before a capture, so that libraries have chosen their kernels


class CudaGraphs:
    """Calls `work(kind)`; after a few eager calls of a kind it captures a CUDA graph of it and replays that.

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

    def __call__(self, kind: int) -> None:
        if kind not in self._graphs:
            calls = self._calls[kind] = self._calls.get(kind, 0) + 1
            if calls <= WARM_UPS:
                self._run_eagerly(kind)
                return
            self._graphs[kind] = self._capture(kind)
        self._graphs[kind].replay()

    @property
    def captured(self) -> frozenset[int]:
        """The kinds of work that are replayed from a graph."""
        return frozenset(self._graphs)

    def _run_eagerly(self, kind: int) -> None:
        # Warm-ups run on a side stream because a capture will.
        current = torch.cuda.current_stream(self._stream.device)  # of this device, which need not be the first
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._work(kind)
        current.wait_stream(self._stream)

    def _capture(self, kind: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, stream=self._stream):
            self._work(kind)
        # capture_begin sets the generators' offsets on the device, on the side stream; the first replay sets them on
        # the current stream and must come later, or it draws the numbers of a generator that has drawn none.
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        return graph
