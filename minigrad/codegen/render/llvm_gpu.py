"""Loop IR to LLVM IR for GPUs, to see what compilers make of it: registers, local memory, the machine's text.

The kernel takes the arguments of the OpenCL kernel: (buffer, offset) each, scalars, dims, the extent. Pointers are
generic; LLVM finds the address spaces again. Registers are allocas in private memory. A read under a condition is one
at offset 0 where that is false, as in OpenCL C.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigrad.codegen.ir.nodes import Alloc, Call, Function, Loop, group_size
from minigrad.codegen.ir.text import meaning_of
from minigrad.codegen.render.llvm import LlvmEmitter
from minigrad.codegen.render.llvm_text import memory_type, scalar_type, typed, vector
from minigrad.codegen.render.place import INDEX, Memory, OpenLoop, Ref, Scope, argument_kinds
from minigrad.codegen.transforms.inline import inline_calls
from minigrad.dtype import bool_, int32
from minigrad.errors import present
from minigrad.program import GROUP, Program
from minigrad.target import Target


@dataclass(frozen=True, slots=True)
class Dialect:
    """The spelling of a family of GPUs: calling convention, numbers of work-item and work-group, barrier, private
    memory."""

    triple: str
    convention: str
    item: str
    group: str
    barrier: tuple[str, ...]
    private: int


DIALECTS = {
    "amdgpu": Dialect("amdgcn-amd-amdhsa", "amdgpu_kernel", "llvm.amdgcn.workitem.id.x", "llvm.amdgcn.workgroup.id.x",
                      ('fence syncscope("workgroup") release', "call void @llvm.amdgcn.s.barrier()",
                       'fence syncscope("workgroup") acquire'), 5),
    "nvptx": Dialect("nvptx64-nvidia-cuda", "ptx_kernel", "llvm.nvvm.read.ptx.sreg.tid.x",
                     "llvm.nvvm.read.ptx.sreg.ctaid.x", ("call void @llvm.nvvm.barrier0()",), 0),
}


def render_llvm_gpu(function: Function, target: Target) -> Program:
    """The Program of one loop IR function in LLVM IR for `target.language`, 'amdgpu' or 'nvptx'."""
    function = inline_calls(function, lambda kernel: kernel.fits(target))
    emitter = GpuLlvmEmitter(function, target)
    source = emitter.render()
    return Program(function.name, target.language, source, argument_kinds(function), 0, group_size(function))


class GpuLlvmEmitter(LlvmEmitter):
    """See `LlvmEmitter`. `prologue`: the allocas of the entry block; `globals` are local arrays, `functions` texts of
    microkernels by name."""

    def __init__(self, function: Function, target: Target):
        super().__init__(function, target)
        self.dialect = DIALECTS[target.language]
        self.prologue: list[str] = []
        self.globals: list[str] = []
        self.functions: dict[str, str] = {}

    @property
    def private(self) -> str:
        """The pointer type of an alloca."""
        return f"ptr addrspace({self.dialect.private})" if self.dialect.private else "ptr"

    def render(self) -> str:
        self.emit_body()
        f, d = self.function, self.dialect
        size = group_size(f) or GROUP
        body, parameters = [], []
        for b in f.buffers:
            kind = memory_type(b.dtype)
            parameters += [f"ptr addrspace(1) noalias{' readonly' if b.mode == 'in' else ''} %{b.name}.global",
                           f"i64 %{b.name}.offset"]
            body += [f"  %{b.name}.base = addrspacecast ptr addrspace(1) %{b.name}.global to ptr",
                     f"  %{b.name} = getelementptr {kind}, ptr %{b.name}.base, i64 %{b.name}.offset"]
        parameters += [f"{memory_type(s.dtype)} %{s.name}" for s in f.scalars]
        parameters += [*(f"i64 %{v.name}" for v in f.dims), "i64 %extent."]
        return "\n".join([
            f'target triple = "{d.triple}"', *self.globals, *self.functions.values(),
            f"define {d.convention} void @{f.name}({', '.join(parameters)}) #0 !reqd_work_group_size !0 {{", "entry:",
            *body, *self.prologue, *self.scopes[0].lines, "  ret void", "}",
            f'attributes #0 = {{ nounwind "amdgpu-flat-work-group-size"="{size},{size}" }}',
            f"!0 = !{{i32 {size}, i32 1, i32 1}}", ""])

    # ---- memory ----

    def safe_pointer(self, memory: Memory, p: Ref, mask: Ref | None, lanes: int) -> Ref:
        if mask is None:
            return p
        return self.pure(f"select i1 {mask.text}, ptr {p.text}, ptr {memory.text}", memory.dtype, 1, (mask, p), "p")

    def fetch(self, memory: Memory, text: str, lanes: int, operands: Sequence[Ref], floor: int,
              mask: Ref | None) -> Ref:
        return super().fetch(memory, text, lanes, operands, floor, None)

    def allocate(self, s: Alloc) -> Memory:
        kind = vector(scalar_type(s.dtype), self.width)
        if s.scope == "register":
            memory = Memory(s.name, s.dtype, s.size, "register", "", self.width)
            memory.slots = tuple([self.name(s.name) for _ in range(s.size)])
            space = f", addrspace({self.dialect.private})" if self.dialect.private else ""
            self.prologue += [f"  {slot} = alloca {kind}{space}" for slot in memory.slots]
            return memory
        block = f"[{s.size * self.width} x {memory_type(s.dtype)}]"
        if s.scope == "local":
            name = f"@{self.function.name}.{s.name}"
            self.globals.append(f"{name} = internal addrspace(3) global {block} poison, align 64")
            text = self.pure(f"addrspacecast ptr addrspace(3) {name} to ptr", s.dtype, 1, (), s.name).text
            return Memory(s.name, s.dtype, s.size, "local", text)
        slot, base = self.name(s.name), self.name(s.name)
        self.prologue.append(f"  {slot} = alloca {block}, align 64, addrspace({self.dialect.private})")
        self.prologue.append(f"  {base} = addrspacecast {self.private} {slot} to ptr" if self.dialect.private
                             else f"  {base} = getelementptr i8, ptr {slot}, i64 0")
        return Memory(s.name, s.dtype, s.size, "scratch", base, self.width)

    def read_slot(self, memory: Memory, slot: int) -> Ref:
        kind = vector(scalar_type(memory.dtype), memory.lanes)
        return self.here(f"load {kind}, {self.private} {memory.slots[slot]}", memory.dtype, memory.lanes, memory,
                         memory.name)

    def write_slot(self, memory: Memory, slot: int, value: Ref) -> None:
        memory.version += 1
        self.line(f"store {typed(value)}, {self.private} {memory.slots[slot]}")

    def carry(self, stored: Sequence[Memory]) -> tuple[tuple[str, Ref], ...]:
        return ()  # they are variables

    # ---- control ----

    def identity(self, intrinsic: str) -> Ref:
        """The number of the work-item in its work-group, or of the work-group."""
        text = self.pure(f"call i32 @{intrinsic}()", int32, 1, (), "id")
        return self.pure(f"zext i32 {text.text} to i64", INDEX, 1, (text,), "id")

    def open_loop(self, s: Loop) -> tuple[Ref, OpenLoop]:
        if s.kind == "parallel":
            first = self.integer("mul", self.identity(self.dialect.group), self.constant(GROUP, INDEX))
            place = self.integer("add", first, self.identity(self.dialect.item))
            inside = self.pure(f"icmp slt i64 {place.text}, %extent.", bool_, 1, (place,), "c")
            self.counter += 1
            label = f"{s.var.name}.{self.counter}"
            self.scopes.append(Scope(crossable=False, label=f"{label}.body"))
            return place, OpenLoop(label, place, place, inside)
        if s.kind in ("group", "item"):
            place = self.identity(self.dialect.group if s.kind == "group" else self.dialect.item)
            self.scopes.append(Scope(crossable=True, label=self.scope.label))
            return place, OpenLoop("", place, place)
        return super().open_loop(s)

    def close_loop(self, s: Loop, inner: Scope, state: OpenLoop) -> None:
        if s.kind == "parallel":
            some, label = present(state.some, "[render] expected a condition of a parallel loop"), state.name
            self.line(f"br i1 {some.text}, label %{label}.body, label %{label}.end")
            self.scope.lines += [f"{label}.body:", *inner.lines, f"  br label %{label}.end", f"{label}.end:"]
            self.scope.label = f"{label}.end"
        elif s.kind in ("group", "item"):
            self.scope.lines += inner.lines
            self.scope.label = inner.label
        else:
            super().close_loop(s, inner, state)

    def call_microkernel(self, s: Call) -> None:
        """A call of a function in the module: pointers to local memory and to each register, dims."""
        text = present(s.kernel.implementation, f"[render] expected the source of {s.kernel.name}")
        self.functions[s.kernel.name] = text
        args: list[str] = []
        for (name, offset), param in zip(s.buffers, meaning_of(s.kernel).buffers, strict=True):
            memory = self.memory[name]
            if memory.place == "register":
                first = self.slot(memory, offset)
                args += [f"{self.private} {slot}" for slot in memory.slots[first:first + int(param.size)]]
            else:
                args.append(f"ptr {self.pointer(memory, offset).text}")
        args += [f"i64 {self.index(e).text}" for e in s.dims]
        self.line(f"call void @{s.kernel.name}({', '.join(args)})")

    def barrier(self) -> None:
        for text in self.dialect.barrier:
            self.line(text)
