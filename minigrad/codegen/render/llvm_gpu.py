"""Loop IR to LLVM IR for GPUs, to see what compilers make of it: registers, local memory, the machine's text.

The kernel takes the arguments of the OpenCL kernel: (buffer, offset) each, scalars, dims, the extent. Pointers are
generic; LLVM finds the address spaces again. Registers are allocas in private memory. A read under a condition is one
at offset 0 where that is false, as in OpenCL C.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigrad.codegen.ir.nodes import Alloc, Call, Function, Loop, Stmt, group_size
from minigrad.codegen.ir.text import meaning_of
from minigrad.codegen.render.accesses import slot
from minigrad.codegen.render.emitter import Emitter
from minigrad.codegen.render.index import index
from minigrad.codegen.render.language import Control, Storage
from minigrad.codegen.render.llvm import LlvmControl, emit_body
from minigrad.codegen.render.llvm_memory import LlvmAccess
from minigrad.codegen.render.llvm_text import memory_type, scalar_type, typed, vector
from minigrad.codegen.render.llvm_values import LlvmLanguage
from minigrad.codegen.render.refs import INDEX, Memory, OpenLoop, Ref, Scope, argument_kinds
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
    source = GpuProgram(function, target).render()
    return Program(function.name, target.language, source, argument_kinds(function), 0, group_size(function))


class GpuProgram:
    """The whole text: values and accesses as for processors, storage and control of a GPU."""

    def __init__(self, function: Function, target: Target):
        out = self.out = Emitter(function, target)
        self.dialect = DIALECTS[target.language]
        language = self.language = LlvmLanguage(out)
        access = LlvmAccess(out, language, from_zeros=False)
        self.storage = GpuStorage(out, self.dialect)
        self.control = GpuControl(out, self.storage, access, LlvmControl(out, language, access, carries=False))
        out.speak(language, access, self.storage, self.control)

    def render(self) -> str:
        emit_body(self.out)
        f, d = self.out.function, self.dialect
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
            f'target triple = "{d.triple}"', *self.storage.globals, *self.control.functions.values(),
            *self.language.helpers.values(),
            f"define {d.convention} void @{f.name}({', '.join(parameters)}) #0 !reqd_work_group_size !0 {{", "entry:",
            *body, *self.storage.prologue, *self.out.scopes[0].lines, "  ret void", "}",
            f'attributes #0 = {{ nounwind "amdgpu-flat-work-group-size"="{size},{size}" }}',
            f"!0 = !{{i32 {size}, i32 1, i32 1}}", ""])


class GpuStorage(Storage):
    """`prologue`: the allocas of the entry block; `globals`: local arrays."""

    def __init__(self, out: Emitter, dialect: Dialect):
        self.out, self.dialect = out, dialect
        self.prologue: list[str] = []
        self.globals: list[str] = []

    @property
    def private(self) -> str:
        """The pointer type of an alloca."""
        return f"ptr addrspace({self.dialect.private})" if self.dialect.private else "ptr"

    def allocate(self, s: Alloc) -> Memory:
        kind = vector(scalar_type(s.dtype), self.out.width)
        if s.scope == "register":
            memory = Memory(s.name, s.dtype, s.size, "register", "", self.out.width)
            memory.slots = tuple([self.out.language.name(s.name) for _ in range(s.size)])
            space = f", addrspace({self.dialect.private})" if self.dialect.private else ""
            self.prologue += [f"  {slot} = alloca {kind}{space}" for slot in memory.slots]
            return memory
        block = f"[{s.size * self.out.width} x {memory_type(s.dtype)}]"
        if s.scope == "local":
            name = f"@{self.out.function.name}.{s.name}"
            self.globals.append(f"{name} = internal addrspace(3) global {block} poison, align 64")
            text = self.out.pure(f"addrspacecast ptr addrspace(3) {name} to ptr", s.dtype, 1, (), s.name).text
            return Memory(s.name, s.dtype, s.size, "local", text)
        slot, base = self.out.language.name(s.name), self.out.language.name(s.name)
        self.prologue.append(f"  {slot} = alloca {block}, align 64, addrspace({self.dialect.private})")
        self.prologue.append(f"  {base} = addrspacecast {self.private} {slot} to ptr" if self.dialect.private
                             else f"  {base} = getelementptr i8, ptr {slot}, i64 0")
        return Memory(s.name, s.dtype, s.size, "scratch", base, self.out.width)

    def read_slot(self, memory: Memory, slot: int) -> Ref:
        kind = vector(scalar_type(memory.dtype), memory.lanes)
        return self.out.here(f"load {kind}, {self.private} {memory.slots[slot]}", memory.dtype, memory.lanes, memory,
                         memory.name)

    def write_slot(self, memory: Memory, slot: int, value: Ref) -> None:
        memory.version += 1
        self.out.line(f"store {typed(value)}, {self.private} {memory.slots[slot]}")


class GpuControl(Control):
    """Loops over work-items and work-groups; others are those of `serial`. `functions`: texts of microkernels by
    name."""

    def __init__(self, out: Emitter, storage: GpuStorage, access: LlvmAccess, serial: LlvmControl):
        self.out, self.storage, self.access, self.serial = out, storage, access, serial
        self.dialect = storage.dialect
        self.functions: dict[str, str] = {}

    def identity(self, intrinsic: str) -> Ref:
        """The number of the work-item in its work-group, or of the work-group."""
        text = self.out.pure(f"call i32 @{intrinsic}()", int32, 1, (), "id")
        return self.out.pure(f"zext i32 {text.text} to i64", INDEX, 1, (text,), "id")

    def open_loop(self, s: Loop) -> tuple[Ref, OpenLoop]:
        if s.kind == "parallel":
            integer = self.out.language.integer
            first = integer("mul", self.identity(self.dialect.group), self.out.constant(GROUP, INDEX))
            place = integer("add", first, self.identity(self.dialect.item))
            inside = self.out.pure(f"icmp slt i64 {place.text}, %extent.", bool_, 1, (place,), "c")
            self.out.counter += 1
            label = f"{s.var.name}.{self.out.counter}"
            self.out.scopes.append(Scope(crossable=False, label=f"{label}.body"))
            return place, OpenLoop(label, place, place, inside)
        if s.kind in ("group", "item"):
            place = self.identity(self.dialect.group if s.kind == "group" else self.dialect.item)
            self.out.scopes.append(Scope(crossable=True, label=self.out.scope.label))
            return place, OpenLoop("", place, place)
        return self.serial.open_loop(s)

    def close_loop(self, s: Loop, inner: Scope, state: OpenLoop) -> None:
        if s.kind == "parallel":
            some, label = present(state.some, "[render] expected a condition of a parallel loop"), state.name
            self.out.line(f"br i1 {some.text}, label %{label}.body, label %{label}.end")
            self.out.scope.lines += [f"{label}.body:", *inner.lines, f"  br label %{label}.end", f"{label}.end:"]
            self.out.scope.label = f"{label}.end"
        elif s.kind in ("group", "item"):
            self.out.scope.lines += inner.lines
            self.out.scope.label = inner.label
        else:
            self.serial.close_loop(s, inner, state)

    def close_if(self, condition: Ref, then: Scope, otherwise: Scope | None) -> None:
        self.serial.close_if(condition, then, otherwise)

    def vector_body(self, s: Loop) -> None:
        self.serial.vector_body(s)

    def region(self, body: Sequence[Stmt]) -> None:
        self.serial.region(body)

    def call_microkernel(self, s: Call) -> None:
        """A call of a function in the module: pointers to local memory and to each register, dims."""
        text = present(s.kernel.implementation, f"[render] expected the source of {s.kernel.name}")
        self.functions[s.kernel.name] = text
        args: list[str] = []
        for (name, offset), param in zip(s.buffers, meaning_of(s.kernel).buffers, strict=True):
            memory = self.out.memory[name]
            if memory.place == "register":
                first = slot(self.out, memory, offset)
                registers = memory.slots[first:first + int(param.size)]
                args += [f"{self.storage.private} {register}" for register in registers]
            else:
                args.append(f"ptr {self.access.pointer(memory, offset).text}")
        args += [f"i64 {index(self.out, e).text}" for e in s.dims]
        self.out.line(f"call void @{s.kernel.name}({', '.join(args)})")

    def barrier(self) -> None:
        for text in self.dialect.barrier:
            self.out.line(text)
