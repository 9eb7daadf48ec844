"""Matrix units of GPUs: one multiplies a small matrix with another and adds it to sums that a wave's work-items hold.

    c[e] += sum(x < depth: a[row(lane, e), x] * b[column(lane, e), x])        e < each, for one work-item of 32

That is the whole meaning, and it is one work-item's own: it reads local memory and adds to registers. An implementation
lets the work-items of a wave load different parts and exchange them, so that all 32 must come to the call together,
with the same a and b. Where there is none, each work-item computes its own sums. Operands lie along the sum, half
values as their bits: a[i, x] at i * a_pitch + x, b likewise; pitches and starts are multiples of 16 bytes.

'mma' is NVIDIA's mma.sync from compute capability 8.0 on (m16n8k16, m16n8k8 of tf32), as PTX inside OpenCL C or LLVM
IR; 'wmma' is RDNA 3's v_wmma (16 x 16 x 16, where lanes 16..31 hold the same operands as 0..15). Matrix units round
sums in their own way. tf32 is float32 with 10 bits of mantissa: operands are rounded to it, to nearest, halves away
from zero, which is why plans use it only where `config.allow_tf32` says so.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from minigrad.codegen.microkernels.microkernel import Microkernel
from minigrad.dtype import DType, bfloat16, float16, float32, uint16
from minigrad.expr import Index, Var, to_text
from minigrad.target import Target

WAVE = 32
"""Work-items that act together."""

_LIMIT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    """A family's instruction for operands of `dtype`, 'f16', 'bf16' or 'tf32' by `kind`: rows x columns sums, `each` of
    them in a work-item."""

    family: str
    kind: str
    dtype: DType
    rows: int
    columns: int
    depth: int
    each: int

    @property
    def name(self) -> str:
        return f"{self.family}_{self.kind}"

    @property
    def feature(self) -> str:
        """The feature of a Target that has the instruction."""
        return f"{self.family}-{self.kind}"

    @property
    def stored(self) -> DType:
        """The type of operands in local memory."""
        return uint16 if self.dtype.itemsize == 2 else self.dtype

    def place(self, lane: Index, e: Index) -> tuple[Index, Index]:
        """(row, column) of sum `e` of a work-item."""
        if self.family == "mma":
            return lane // 4 + e // 2 * 8, lane % 4 * 2 + e % 2
        return e * 2 + lane // 16, lane % 16

    def meaning(self) -> str:
        row, column = self.place(Var("lane", 0, WAVE - 1), Var("e", 0, self.each - 1))
        a, b = (f"{name}[({to_text(place)}) * {name}_pitch + x]" for name, place in (("a", row), ("b", column)))
        pitches = ", ".join(f"{operand}_pitch: index in {self.depth}..{_LIMIT}" for operand in "ab")
        return "\n".join([
            f"func {self.name}(in a: {self.stored.short}[{self.rows - 1} * a_pitch + {self.depth}], "
            f"in b: {self.stored.short}[{self.columns - 1} * b_pitch + {self.depth}], inout c: f32[{self.each}], "
            f"lane: index in 0..{WAVE - 1}, {pitches})",
            f"  for x in 0..{self.depth} serial:",
            f"    for e in 0..{self.each} unroll:",
            f"      let p = {a}", f"      let q = {b}",
            f"      c[e] = fma({self._factor('p')}, {self._factor('q')}, c[e])", ""])

    def _factor(self, operand: str) -> str:
        """The text of a factor."""
        if self.stored is uint16:
            return f"f32(bitcast({operand}, {self.dtype.short}))"
        # Half of the last bit that stays is added; NaN, which this might carry into the sign, stays as it is.
        bits = f"bitcast({operand}, u32)"
        return f"where({operand} == {operand}, bitcast({bits} + 4096:u32 & 4294959104:u32, f32), {operand})"


UNITS = (*(MatrixUnit(family, dtype.short, dtype, *shape)
           for family, shape in (("mma", (16, 8, 16, 4)), ("wmma", (16, 16, 16, 8))) for dtype in (float16, bfloat16)),
         MatrixUnit("mma", "tf32", float32, 16, 8, 8, 4))


def unit_of(dtype: DType, target: Target) -> MatrixUnit | None:
    """The matrix unit that a target has for operands of a type."""
    return next((u for u in UNITS if u.dtype is dtype and u.feature in target.features
                 and f"{u.name}_{target.language}" in _TEXTS), None)


@lru_cache(maxsize=64)
def matrix_microkernel(name: str) -> Microkernel | None:
    """The microkernel of a matrix unit in a language: 'mma_f16_opencl' and the like."""
    stem, _, language = name.rpartition("_")
    unit = next((u for u in UNITS if u.name == stem), None)
    if unit is None or name not in _TEXTS:
        return None
    return Microkernel(name, unit.meaning(), frozenset({unit.feature}), _TEXTS[name], language)


def unit_named(name: str) -> MatrixUnit:
    """The matrix unit of such a microkernel."""
    return next(u for u in UNITS if u.name == name.rpartition("_")[0])


# ---- implementations ----

_MMA = "mma.sync.aligned.m16n8k{depth}.row.col.f32.{kind}.{kind}.f32"
_ROUND = "cvt.rna.tf32.f32"


def _mma_opencl(name: str, kind: str) -> str:
    """NVIDIA's compiler takes PTX in OpenCL C as in CUDA. A register holds two neighbours along the sum, or a tf32."""
    depth, memory = (8, "float") if kind == "tf32" else (16, "ushort")
    places = [(f"a{r}", f"a + (g + {8 * (r % 2)}) * a_pitch + k + {depth // 2 * (r // 2)}") for r in range(4)]
    places += [(f"b{r}", f"b + g * b_pitch + k + {depth // 2 * r}") for r in range(2)]
    reads = [f"    const uint {x} = *(__local const uint *)({place});" for x, place in places]
    if kind == "tf32":
        reads = [f'    uint {x}; asm("{_ROUND} %0, %1;" : "=r"({x}) : "f"(*({place})));' for x, place in places]
    return "\n".join([
        f"void {name}(__local const {memory} *a, __local const {memory} *b, float *c0, float *c1, float *c2, "
        "float *c3, int lane, int a_pitch, int b_pitch) {",
        f"    const int g = lane / 4, k = lane % 4 * {depth // 8};", *reads,
        f'    asm("{_MMA.format(kind=kind, depth=depth)} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, '
        '{%0, %1, %2, %3};" : "+f"(*c0), "+f"(*c1), "+f"(*c2), "+f"(*c3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), '
        '"r"(b0), "r"(b1));', "}"])


def _mma_nvptx(name: str, kind: str) -> str:
    sums, four = range(4), "{float, float, float, float}"
    depth, memory = (8, "float") if kind == "tf32" else (16, "i16")
    lines = [f"define internal void @{name}(ptr %a, ptr %b, {', '.join(f'ptr %c{e}' for e in sums)}, i64 %lane, "
             "i64 %a_pitch, i64 %b_pitch) alwaysinline convergent nounwind {",
             "  %g = lshr i64 %lane, 2", "  %t = and i64 %lane, 3", f"  %k = mul i64 %t, {depth // 8}"]
    for operand, count in (("a", 4), ("b", 2)):
        lines += [f"  %{operand}.row = mul i64 %g, %{operand}_pitch",
                  f"  %{operand}.at = add i64 %{operand}.row, %k",
                  f"  %{operand}0.p = getelementptr {memory}, ptr %{operand}, i64 %{operand}.at"]
        if count == 4:
            lines += ["  %down = shl i64 %a_pitch, 3", f"  %a1.p = getelementptr {memory}, ptr %a0.p, i64 %down"]
        step = count // 2
        lines += [f"  %{operand}{r}.p = getelementptr {memory}, ptr %{operand}{r - step}.p, i64 {depth // 2}"
                  for r in range(step, count)]
        for x in (f"{operand}{r}" for r in range(count)):
            if kind == "tf32":
                lines += [f"  %{x}.x = load float, ptr %{x}.p, align 4",
                          f'  %{x} = call i32 asm "{_ROUND} $0, $1;", "=r,f"(float %{x}.x) nounwind memory(none)']
            else:
                lines.append(f"  %{x} = load i32, ptr %{x}.p, align 4")
    lines += [f"  %old{e} = load float, ptr %c{e}, align 4" for e in sums]
    words = ", ".join(f"i32 %{x}" for x in ("a0", "a1", "a2", "a3", "b0", "b1"))
    lines += [f'  %new = call {four} asm "{_MMA.format(kind=kind, depth=depth)} {{$0, $1, $2, $3}}, '
              f'{{$4, $5, $6, $7}}, {{$8, $9}}, {{$10, $11, $12, $13}};", "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"({words}, '
              f"{', '.join(f'float %old{e}' for e in sums)}) convergent nounwind memory(none)"]
    for e in sums:
        lines += [f"  %new{e} = extractvalue {four} %new, {e}", f"  store float %new{e}, ptr %c{e}, align 4"]
    return "\n".join([*lines, "  ret void", "}"])


def _wmma_amdgpu(name: str, kind: str, vector: str) -> str:
    sums = range(8)
    intrinsic = f"@llvm.amdgcn.wmma.f32.16x16x16.{kind}.v8f32.v16{'f16' if kind == 'f16' else 'i16'}"
    lines = [f"declare <8 x float> {intrinsic}({vector}, {vector}, <8 x float>)",
             f"define internal void @{name}(ptr %a, ptr %b, {', '.join(f'ptr addrspace(5) %c{e}' for e in sums)}, "
             "i64 %lane, i64 %a_pitch, i64 %b_pitch) alwaysinline convergent nounwind {",
             "  %line = and i64 %lane, 15"]
    for operand in "ab":
        lines += [f"  %{operand}.at = mul i64 %line, %{operand}_pitch",
                  f"  %{operand}.p = getelementptr i16, ptr %{operand}, i64 %{operand}.at",
                  f"  %{operand}.x = load {vector}, ptr %{operand}.p, align 16"]
    old = "poison"
    for e in sums:
        lines += [f"  %old{e} = load float, ptr addrspace(5) %c{e}, align 4",
                  f"  %sum{e} = insertelement <8 x float> {old}, float %old{e}, i64 {e}"]
        old = f"%sum{e}"
    lines.append(f"  %new = call <8 x float> {intrinsic}({vector} %a.x, {vector} %b.x, <8 x float> {old})")
    for e in sums:
        lines += [f"  %new{e} = extractelement <8 x float> %new, i64 {e}",
                  f"  store float %new{e}, ptr addrspace(5) %c{e}, align 4"]
    return "\n".join([*lines, "  ret void", "}"])


_TEXTS = {f"mma_{kind}_{language}": make(f"mma_{kind}_{language}", kind)
          for kind in ("f16", "bf16", "tf32") for language, make in (("opencl", _mma_opencl), ("nvptx", _mma_nvptx))}
_TEXTS |= {f"wmma_{kind}_amdgpu": _wmma_amdgpu(f"wmma_{kind}_amdgpu", kind, vector)
           for kind, vector in (("f16", "<16 x half>"), ("bf16", "<16 x i16>"))}
