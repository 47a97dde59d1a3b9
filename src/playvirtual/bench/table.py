"""A measurement as text: what `playvirtual bench` prints."""

from __future__ import annotations

from playvirtual.bench.measure import Measurement
from playvirtual.bench.profiling import Kernels

NAME_WIDTH = 72  # characters of a kernel's name that are shown; with template arguments it may have hundreds
LABEL_WIDTH = 28


def table(m: Measurement) -> str:
    """The measurement in aligned lines; every number has its unit."""
    lines = [
        str(m.machine),
        f"{m.task}, {m.method}: batch {m.batch_size}, K = {m.K}, M = {m.M}; {m.precision}, compile {m.compile}",
        "",
        _line("first update ready after", f"{m.first_update_s:.2f} s"),
        _line(
            "one update",
            f"{m.update_ms.median:.3f} ms (quartiles {m.update_ms.q1:.3f} to {m.update_ms.q3:.3f}; "
            f"{m.blocks} blocks of {m.block_updates})",
        ),
        _line("updates", f"{rate(m.updates_per_s)} /s"),
    ]
    if m.loop is not None:
        each = f"{m.updates_per_step:g} update{'s' * (m.updates_per_step != 1)} each, {m.loop.steps} timed"
        lines += [
            _line("agent steps, whole loop", f"{rate(m.loop.steps_per_s)} /s ({each})"),
            _line("  share environment", f"{m.loop.environment:6.1%}"),
            _line("  share acting and transfer", f"{m.loop.acting:6.1%}"),
            _line("  share update", f"{m.loop.update:6.1%}"),
        ]
        if m.gpu_gib is not None:
            lines.append("  (shares from a separate pass that waits for the GPU after each part)")
    if m.gpu_gib is not None:
        lines.append(_line("GPU memory, peak", f"{m.gpu_gib:.2f} GiB in tensors, {m.gpu_reserved_gib:.2f} reserved"))
    lines.append(_line("process memory, peak", f"{m.rss_gib:.2f} GiB"))
    return "\n".join([*lines, *([] if m.kernels is None else _kernels(m.kernels))])


def rate(per_second: float) -> str:
    """At least three digits, and no more than the clock can resolve."""
    return f"{per_second:.1f}" if per_second >= 10 else f"{per_second:.3g}"


def _line(label: str, value: str) -> str:
    return f"{label:<{LABEL_WIDTH}}{value}"


def _kernels(k: Kernels) -> list[str]:
    lines = [_line(k.kind, f"{k.per_update:.0f} per update, {k.ms:.3f} ms in all under the profiler"), ""]
    if not k.top:
        return [*lines[:1], "  (the profiler recorded nothing)"]
    lines.append(f"{'ms':>10}{'share':>8}{'calls':>8}  name")
    for kernel in k.top:
        name = kernel.name if len(kernel.name) <= NAME_WIDTH else kernel.name[: NAME_WIDTH - 1] + "…"
        lines.append(f"{kernel.ms:>10.3f}{kernel.share:>8.1%}{kernel.calls:>8.4g}  {name}")
    return lines
