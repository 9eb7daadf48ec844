"""Loop IR to OpenCL C 1.2.

The parallel loop is the global id, a group loop the work-group's, an item loop the local id. Vector loops use the
vector types where their width has one; other widths round up to the next and leave the last lanes alone, wider ones run
16 lanes at a time. Index arithmetic is 32 bits wide where every offset provably fits. A read under a condition is one
at offset 0 where that is false, and its value is then dropped: a driver may execute both sides. A bool is an int in
registers (0 or 1; 0 or -1 in each lane of a vector) and a uchar in memory; float16 is a float in registers, bfloat16
its bits. Scratch memory is local memory of a work-group of one work-item; what does not fit there is private.
"""
from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256

from minigrad.codegen.ir.nodes import Call, Function, Loop, Stmt, extent_of, group_size
from minigrad.codegen.ir.text import meaning_of
from minigrad.codegen.microkernels.microkernel import symbol_of
from minigrad.codegen.render.accesses import slot
from minigrad.codegen.render.emitter import Emitter
from minigrad.codegen.render.index import index
from minigrad.codegen.render.language import Control
from minigrad.codegen.render.opencl_language import HELPERS, MEMORY_TYPES, argument_type, prefix_of, uses_double
from minigrad.codegen.render.opencl_memory import ALIGNMENT, OpenclAccess, OpenclStorage
from minigrad.codegen.render.opencl_values import ZEROS, OpenclLanguage
from minigrad.codegen.render.refs import INDEX, Memory, OpenLoop, Ref, Scope, argument_kinds
from minigrad.codegen.render.statements import block
from minigrad.codegen.transforms.budget import iterations
from minigrad.dtype import DType, bool_, float32
from minigrad.errors import DeviceError, present
from minigrad.expr import bounds
from minigrad.program import Program
from minigrad.target import SUMS_REORDERED, Target

_IDS = {"parallel": "get_global_id(0)", "group": "get_group_id(0)", "item": "get_local_id(0)"}


def render_opencl(function: Function, target: Target) -> Program:
    """The OpenCL Program of one loop IR function. Raises DeviceError where the device lacks a type that it needs, or
    where its driver cannot be kept from ending the loops too early."""
    if target.max_iterations and iterations(function.body) > target.max_iterations:
        raise DeviceError(f"[render] {function.name}: expected at most {target.max_iterations} iterations in one "
                          f"work-item, where {target.name} ({target.cpu}) stops, got {iterations(function.body)}")
    if "fp64" not in target.features and uses_double(function):
        raise DeviceError(f"[render] {function.name}: {target.name} ({target.cpu}) has no float64")
    program = OpenclProgram(function, target)
    name, source = program.render()
    return Program(name, "opencl", source, argument_kinds(function), program.storage.scratch, program.group)


OWN = "own_space"
"""The address space of scratch memory, in texts of which not all is known yet."""


class OpenclProgram:
    """The whole text, and the parts that write it."""

    def __init__(self, function: Function, target: Target):
        out = self.out = Emitter(function, target)
        language = self.language = OpenclLanguage(out)
        storage = self.storage = OpenclStorage(out, language)
        control = self.control = OpenclControl(out, language)
        out.speak(language, OpenclAccess(out, language), storage, control)

    def render(self) -> tuple[str, str]:
        """(name, source). The name ends in a digest of the text: no function of the language has such a name, and
        kernels that differ only in their bodies can be compiled in one build."""
        out, f, safe, index_type = self.out, self.out.function, self.language.safe, self.language.index_type
        for b in f.buffers:
            out.memory[b.name] = Memory(b.name, b.dtype, b.size, b.mode, safe(b.name))
        for s in f.scalars:
            out.locals[s.name] = self.scalar_argument(safe(s.name), s.dtype)
        out.variables |= {d: Ref(safe(d.name), INDEX) for d in f.dims}
        block(out, f.body)
        double = ["#pragma OPENCL EXTENSION cl_khr_fp64 : enable"] if uses_double(f) else []
        head = ["#pragma OPENCL FP_CONTRACT OFF", *double]
        lines = ["{", *self.arrays()]
        for b in f.buffers:
            start = f" + {safe(b.start.name)}_dim" if b.start is not None else ""
            lines.append(f"  {safe(b.name)} += {safe(b.name)}_offset{start};")
        for d in f.dims:
            lines.append(f"  const {index_type} {safe(d.name)} = ({index_type}){safe(d.name)}_dim;")
        lines += [f"  const {ZEROS[name]};" for name in sorted(self.language.zeros)]
        body = [self.in_own_space(line) for line in out.scopes[0].lines]
        if extent_of(f) == 1 and not group_size(f):
            body = ["  if (get_global_id(0) < extent) {", *body, "  }"]
        parameters, text = f"({', '.join(self.parameters())})", "\n".join([*lines, *body, "}", ""])
        name = f"{f.name}_{sha256((parameters + text).encode()).hexdigest()[:8]}"
        before = prefix_of(self.group, self.control.widest, self.control.functions, out.target)
        texts = [*[HELPERS[name] for name in sorted(self.language.helpers)], *self.language.functions,
                 *map(self.in_own_space, self.control.functions.values())]
        helpers = [text + "\n" for text in texts]  # paragraphs: once in a build
        return name, "\n".join([*head, *helpers, f"{before}__kernel void {name}{parameters}", text])

    @property
    def group(self) -> int:
        """The work-items of a work-group: as the function says, one where there is scratch memory."""
        return group_size(self.out.function) or (1 if self.storage.scratch else 0)

    @property
    def alone(self) -> bool:
        """True where scratch memory is local memory of a work-group of one work-item."""
        return self.group == 1 and self.storage.scratch + self.storage.shared <= self.out.target.local_memory

    def arrays(self) -> list[str]:
        """Declarations of local and scratch memory, aligned for vectors. Local memory belongs to the whole kernel."""
        return [f"  {'__local ' if self.alone or scope == 'local' else ''}{kind} {name}[{size}] "
                f"__attribute__((aligned({ALIGNMENT})));" for scope, kind, name, size in self.storage.declared]

    def parameters(self) -> list[str]:
        f, safe = self.out.function, self.language.safe
        made = []
        for b in f.buffers:
            name = safe(b.name)
            kind = ("const " if b.mode == "in" else "") + MEMORY_TYPES[b.dtype.name]
            made += [f"__global {kind} *restrict {name}", f"long {name}_offset"]
        made += [f"{argument_type(s.dtype)} {safe(s.name)}" for s in f.scalars]
        return [*made, *[f"long {safe(d.name)}_dim" for d in f.dims], "long extent"]

    def scalar_argument(self, text: str, dtype: DType) -> Ref:
        if dtype is bool_:
            return self.out.pure(f"({text} != 0)", bool_, 1, ())
        return self.language.convert(Ref(text, float32), dtype) if dtype.compute is not dtype else Ref(text, dtype)

    def in_own_space(self, text: str) -> str:
        return text.replace(OWN, "local" if self.alone else "private")


class OpenclControl(Control):
    """Control structures. `functions`: texts of microkernels by name; `widest`: lanes of the widest vectors."""

    def __init__(self, out: Emitter, language: OpenclLanguage):
        self.out, self.language, self.widest = out, language, 1
        self.functions: dict[str, str] = {}

    def vector_body(self, s: Loop) -> None:
        out, whole = self.out, self.out.width
        self.language.parts = -(-whole // 16)
        for out.first_lane in range(0, whole, 16):
            real_width = min(16, whole - out.first_lane)
            out.set_width(1 << (real_width - 1).bit_length(), real_width)
            self.widest = max(self.widest, out.width)
            out.memo = {}
            block(out, s.body)
        out.first_lane = 0

    def region(self, body: Sequence[Stmt]) -> None:
        block(self.out, body)

    def open_loop(self, s: Loop) -> tuple[Ref, OpenLoop]:
        parallel = s.kind == "parallel"
        start, stop = index(self.out, s.start), Ref("extent", INDEX) if parallel else index(self.out, s.stop)
        runs = bounds(s.stop - s.start)[0] >= 1 or s.kind == "group"
        name = self.language.name(self.language.safe(s.var.name))
        self.out.scopes.append(Scope(crossable=runs and not parallel))
        return Ref(name, INDEX, 1, len(self.out.scopes) - 1), OpenLoop(name, start, stop)

    def close_loop(self, s: Loop, inner: Scope, state: OpenLoop) -> None:
        name, start, stop = state.name, state.start, state.stop
        if s.kind in _IDS:
            self.out.line(f"const {self.language.index_type} {name} = {_IDS[s.kind]};")
        if s.kind == "parallel":
            self.out.line(f"if ({name} < {stop.text}) {{")
        elif s.kind in ("group", "item"):
            self.out.line("{")
        else:
            if SUMS_REORDERED in self.out.target.features:
                self.out.line("#pragma clang loop vectorize(disable)")
            self.out.line(f"for ({self.language.index_type} {name} = {start.text}; {name} < {stop.text}; ++{name}) {{")
        self.out.scope.lines += inner.lines
        self.out.line("}")

    def close_if(self, condition: Ref, then: Scope, otherwise: Scope | None) -> None:
        self.out.line(f"if ({condition.text}) {{")
        self.out.scope.lines += then.lines
        if otherwise is not None:
            self.out.line("} else {")
            self.out.scope.lines += otherwise.lines
        self.out.line("}")

    def call_microkernel(self, s: Call) -> None:
        """A call of a function in the source: pointers to memory and to each register, values, dims."""
        name = self.implementation(s)
        args: list[str] = []
        meaning = meaning_of(s.kernel)
        for (buffer, offset), param in zip(s.buffers, meaning.buffers, strict=True):
            memory = self.out.memory[buffer]
            if memory.place == "register":
                args += [f"&{memory.slots[slot(self.out, memory, offset + i)]}" for i in range(int(param.size))]
            else:
                args.append(f"{memory.text} + {index(self.out, offset).text}")
        args += [self.out.values.emit(v).text for v in s.scalars]
        args += [index(self.out, e).text for e in s.dims]
        self.out.line(f"{name}({', '.join(args)});")

    def implementation(self, s: Call) -> str:
        """The name of the function that a call calls: a copy of the text for each set of address spaces of its buffers.
        That of scratch memory is known in the end, when its size is: OWN stands for it."""
        text = present(s.kernel.implementation, f"[render] expected the source of {s.kernel.name}")
        if "SPACE_" not in text:
            self.functions[s.kernel.name] = text
            return s.kernel.name
        places = [self.out.memory[name].place for name, _ in s.buffers]
        spaces = [OWN if p == "scratch" else "local" if p == "local" else "global" for p in places]
        name = "_".join([symbol_of(s.kernel.name, text), *spaces])
        words = {f"SPACE_{b.name}": f"__{space}"
                 for b, space in zip(meaning_of(s.kernel).buffers, spaces, strict=True)} | {s.kernel.name: name}
        text = re.sub(r"\w+", lambda found: words.get(found[0], found[0]), text)
        self.functions[name] = "\n".join(line for line in text.splitlines() if line.strip())  # one paragraph
        return name

    def barrier(self) -> None:
        self.out.line("barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);")
