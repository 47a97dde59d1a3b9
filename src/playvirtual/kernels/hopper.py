"""What the sources of the kernels for Hopper GPUs have in common."""

from __future__ import annotations

from pathlib import Path


def source(name: str, constants: dict[str, int], columns: int = 0) -> str:
    """The kernels' source in this folder, for these constants and, if any, products of so many columns."""
    folder = Path(__file__).parent
    values = "".join(f"constexpr int {key} = {value};\n" for key, value in constants.items())
    parts = [(folder / "hopper.cuh").read_text(), values, products(columns) if columns else ""]
    return "".join([*parts, (folder / name).read_text()])


def products(columns: int) -> str:
    """The tensor cores' products of 64 × 16 by 16 × columns, which name their registers one by one."""
    count = columns // 2
    registers = ", ".join(f"%{i}" for i in range(count))

    def operands(constraint: str) -> str:
        return ", ".join(f'"{constraint}"(d[{i}])' for i in range(count))

    text = []
    for name, adds, constraint in (("multiply", 0, "=f"), ("multiply_add", 1, "+f")):
        product = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16"
        asm = f"{product} {{{registers}}}, %{count}, %{count + 1}, p, 1, 1, 0, 0;"
        text.append(
            f"__device__ __forceinline__ void {name}(float (&d)[{count}], u64 a, u64 b) {{"
            f'asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, {adds}, 0;\\n{asm}\\n}}"'
            f' : {operands(constraint)} : "l"(a), "l"(b));}}'
        )
    wait = f'asm volatile("wgmma.wait_group.sync.aligned 0;" : {operands("+f")} :: "memory");'
    text.append(f"__device__ __forceinline__ void wait_products(float (&d)[{count}]) {{{wait}}}\n")
    return "\n".join(text)
