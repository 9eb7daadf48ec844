"""Loop IR to LLVM IR text (LLVM 22, opaque pointers) with explicit vectors.

A program is two functions: `name`, which has the ABI of CPU programs and unpacks the argument table, and `name.body`,
whose pointer parameters are `noalias`; or one that is both where the rest of LLVM's work is little (`QUICK`). Vector
loops become vector types; what differs by lane under a condition is read and written by masked loads and stores, a
scalar under a condition is read from a block of zeros instead. Register buffers are values (`llvm_registers.py`).
Floating-point arithmetic is neither reassociated nor contracted: what is computed again where it is compared with what
was stored has the same bits. Sums of products are `fma` in loop IR. Passes wanted on the result: instcombine,
simplifycfg; sroa for microkernels that have variables.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from minigrad.codegen.ir.nodes import Alloc, BufferParam, Call, Function, Loop, ScalarParam, Stmt, Store
from minigrad.codegen.ir.text import meaning_of
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.kernel.words import VIEW
from minigrad.codegen.microkernels.microkernel import Microkernel, symbol_of
from minigrad.codegen.render.emitter import Emitter
from minigrad.codegen.render.index import index
from minigrad.codegen.render.language import Control
from minigrad.codegen.render.llvm_memory import LlvmAccess
from minigrad.codegen.render.llvm_registers import (
    LlvmStorage,
    after_branch,
    after_loop,
    carried,
    carry,
    is_big,
    stored_registers,
)
from minigrad.codegen.render.llvm_text import memory_type
from minigrad.codegen.render.llvm_values import LlvmLanguage
from minigrad.codegen.render.refs import INDEX, Memory, OpenLoop, Ref, Scope, argument_kinds
from minigrad.codegen.render.statements import block
from minigrad.dtype import bool_
from minigrad.errors import InternalError
from minigrad.expr import Var, bounds, variables
from minigrad.program import Link, Program
from minigrad.target import Target

WORK = "i64 %begin.", "i64 %end.", "ptr %scratch."
"""The parameters of a program that give its iterations and its memory."""

LEAST_TILE = 8
"""The fewest sums in registers whose rows have pointers of their own."""

QUICK = "; quick"
"""The first line of a source that LLVM's instruction combining, strength reduction and second scheduling gain nothing
for: register tiles with 32 vector registers, of rows and columns and summed up in one loop, or with sizes that are
arguments. They have only some multiplications beside many multiply-adds. (A third less time in LLVM; 107 products
within 0.2% on average, and sixteen with constant sizes within 0.1%. Without the last two softmax would lose 20%,
convolutions whose sums go through loops over taps 10%, and bytes times a matrix of 4 bits 9%.)"""


def render_llvm(function: Function, target: Target) -> Program:
    """The CPU Program of one loop IR function. Raises InternalError for what breaks the rules of loop IR."""
    views = [b for b in function.buffers if b.name.endswith(VIEW)]
    function = replace(function, buffers=function.buffers[:len(function.buffers) - len(views)])
    program = LlvmProgram(function, target)
    for b in views:
        program.out.memory[b.name] = Memory(b.name, b.dtype, b.size, b.mode, f"%{b.name.removesuffix(VIEW)}")
    source = program.render()
    return Program(function.name, "llvm", source, argument_kinds(function), program.storage.scratch,
                   links=tuple(program.control.links.values()))


@lru_cache(maxsize=1024)
def link_of(kernel: Microkernel, target: Target) -> Link:
    """The Link of a microkernel for its calls: its implementation where that fits, else its meaning, compiled."""
    if kernel.implementation is not None and kernel.fits(target):
        return Link(symbol_of(kernel.name, kernel.implementation), kernel.name, kernel.implementation, kernel.language)
    source = LlvmProgram(meaning_of(kernel), target).render_callable(kernel.name)
    return Link(symbol_of(kernel.name, source), kernel.name, source)


def has_rows_and_columns(body: tuple[Stmt, ...]) -> bool:
    """True where a loop sums up a tile of two variables."""
    return any(type(s) is Store and len(variables(s.offset)) > 1 for s in statements(body))


class LlvmProgram:
    """The whole text, and the parts that write it."""

    def __init__(self, function: Function, target: Target):
        out = self.out = Emitter(function, target)
        language = self.language = LlvmLanguage(out)
        access = self.access = LlvmAccess(out, language)
        storage = self.storage = LlvmStorage(out)
        control = self.control = LlvmControl(out, language, access)
        out.speak(language, access, storage, control)

    def render(self) -> str:
        """The program: `void name(const u64 *args, i64 begin, i64 end, u8 *scratch)`."""
        emit_body(self.out)
        name, body = self.out.function.name, self.out.scopes[0].lines
        head = f"define void @{name}(ptr %args., {', '.join(WORK)}) nounwind {{"
        if self.is_quick:
            lines = [QUICK, *self.head(), head, "entry:", *self.unpacked("\n".join(body)), *body, "  ret void", "}"]
        else:
            passed = [*(f"{kind} %{p.name}" for p, kind in self.argument_types()), *WORK]
            lines = [*self.body_function(), head, *self.unpacked(),
                     f"  call void @{name}.body({', '.join(passed)})", "  ret void", "}"]
        lines += [f"declare void @{symbol}({', '.join(types)})"
                  for symbol, types in self.control.declarations.items()]
        return "\n".join([*lines, ""])

    def render_callable(self, name: str) -> str:
        """A function to be called with the parameters themselves, for one that has no parallel loop."""
        emit_body(self.out)
        lines = [*([QUICK] if self.is_quick else []), *self.body_function()]
        own = len(self.out.function.scalars) + len(self.out.function.dims)
        params = self.parameters()[:len(self.out.function.buffers) + own]
        passed = [*(p.replace("noalias ", "").replace("readonly ", "") for p in params), "i64 0", "i64 1", "ptr null"]
        return "\n".join([*lines, f"define void @{name}({', '.join(params)}) nounwind {{",
                          f"  call void @{self.out.function.name}.body({', '.join(passed)})", "  ret void", "}", ""])

    @property
    def is_quick(self) -> bool:
        """True where the source may begin with `QUICK`."""
        tile = self.language.tile
        simple = len(self.out.function.dims) > 0 or not tile.odd
        return tile.seen and simple and self.out.target.registers > 16

    def head(self) -> list[str]:
        """The lines before the functions."""
        f = self.out.function
        lines = [f"; func {f.name}"]
        if self.access.zeros:
            array = f"[{self.access.zeros} x i8] zeroinitializer, align 64"
            lines.append(f"@{f.name}.zeros = private unnamed_addr constant {array}")
        return [*lines, *self.language.helpers.values()]

    def body_function(self) -> list[str]:
        """`name.body`, with what stands before it."""
        start = f"define internal void @{self.out.function.name}.body({', '.join(self.parameters())}) nounwind {{"
        return [*self.head(), start, "entry:", *self.out.scopes[0].lines, "  ret void", "}", ""]

    def parameters(self) -> list[str]:
        f = self.out.function
        buffers = [f"ptr noalias{' readonly' if b.mode == 'in' else ''} %{b.name}" for b in f.buffers]
        scalars = [f"{memory_type(s.dtype)} %{s.name}" for s in f.scalars]
        dims = [f"i64 %{d.name}" for d in f.dims]
        return [*buffers, *scalars, *dims, *WORK[:2], "ptr noalias %scratch."]

    def argument_types(self) -> list[tuple[BufferParam | ScalarParam | Var, str]]:
        """Each argument with its type in the table."""
        f = self.out.function
        return [*((b, "ptr") for b in f.buffers), *((s, memory_type(s.dtype)) for s in f.scalars),
                *((d, "i64") for d in f.dims)]

    def unpacked(self, body: str = "") -> list[str]:
        """Loads of the arguments by name, of those that occur in the body where there is one: most lengths of buffers
        do not."""
        lines = []
        for i, (p, kind) in enumerate(self.argument_types()):
            if not body or f"%{p.name}" in body:
                lines += [f"  %at.{i} = getelementptr i64, ptr %args., i64 {i}",
                          f"  %{p.name} = load {kind}, ptr %at.{i}, align 8"]
        return lines


def emit_body(out: Emitter) -> None:
    """Fills the outermost scope."""
    f = out.function
    for s in f.scalars:
        text = f"%{s.name}"
        if s.dtype is bool_:
            text = out.pure(f"icmp ne i8 {text}, 0", bool_, 1, ()).text
        out.locals[s.name] = Ref(text, s.dtype)
    for d in f.dims:
        out.variables[d] = Ref(f"%{d.name}", INDEX)
    for b in f.buffers:
        text = f"%{b.name}"
        if b.start is not None:
            start = f"getelementptr {memory_type(b.dtype)}, ptr {text}, i64 %{b.start.name}"
            text = out.pure(start, b.dtype, 1, (), b.name).text
        out.memory[b.name] = Memory(b.name, b.dtype, b.size, b.mode, text)
    block(out, f.body)


class LlvmControl(Control):
    """Control structures. `links`: the microkernels that are called, by symbol, and `declarations` the types of their
    arguments; `carries`: register buffers are values, which blocks pass on."""

    def __init__(self, out: Emitter, language: LlvmLanguage, access: LlvmAccess, carries: bool = True):
        self.out, self.language, self.access, self.carries = out, language, access, carries
        self.links: dict[str, Link] = {}
        self.declarations: dict[str, list[str]] = {}

    def vector_body(self, s: Loop) -> None:
        """Emits a vector loop. A big register tile starts with all vector registers free: LLVM would else keep
        constants of loops before it in registers across it, and accumulators on the stack. An empty instruction makes
        it put them away."""
        tile = self.slots_of(s.body)
        if is_big(self.out.target, tile):
            clobbered = ",".join(f"~{{xmm{i}}}" for i in range(self.out.target.registers))
            self.out.line(f'call void asm sideeffect "", "{clobbered}"()')
            self.out.least_level = len(self.out.scopes) - 1
        self.access.transposes.enter(s, tile > 0)
        self.region(s.body)
        self.out.least_level = 0

    def region(self, body: Sequence[Stmt]) -> None:
        self.access.transposes.region(body)

    def slots_of(self, body: tuple[Stmt, ...]) -> int:
        """The number of elements of the register buffers of a block."""
        slots = 0
        for s in body:
            if isinstance(s, Alloc) and s.scope == "register":
                slots += s.size
            elif isinstance(s, Loop) and s.kind == "unroll":
                slots += self.slots_of(s.body) * bounds(s.stop - s.start)[1]
        return slots

    def open_loop(self, s: Loop) -> tuple[Ref, OpenLoop]:
        parallel = s.kind == "parallel"
        start = Ref("%begin.", INDEX) if parallel else index(self.out, s.start)
        stop = Ref("%end.", INDEX) if parallel else index(self.out, s.stop)
        runs = self.out.copies.range_of(s.stop - s.start)[0] >= 1
        some = None
        if parallel or not runs:
            some = self.out.pure(f"icmp slt i64 {start.text}, {stop.text}", bool_, 1, (start, stop), "c")
        self.out.counter += 1
        label = f"{s.var.name}.{self.out.counter}"
        self.out.scopes.append(Scope(crossable=runs or parallel, label=f"{label}.body", held=self.out.scope.held))
        stored = stored_registers(self.out, s.body) if self.carries else []
        tile, sums_up = self.language.tile, "sse" in self.out.target.features and any(
            [len(m.slots) >= LEAST_TILE for m in stored])
        tile.odd |= sums_up and (tile.inside or not has_rows_and_columns(s.body))
        tile.inside, tile.seen = sums_up, tile.seen or sums_up
        tile.counted, tile.strides = f"%{label}" if tile.inside and start.literal == 0 else "", {}
        state = OpenLoop(label, start, stop, some, carry(self.out, stored), tile.strides)
        return Ref(f"%{label}", INDEX, 1, len(self.out.scopes) - 1), state

    def close_loop(self, s: Loop, inner: Scope, state: OpenLoop) -> None:
        label, start, stop, some = state.name, state.start, state.stop, state.some
        self.language.tile.inside, self.language.tile.counted = False, ""
        body, deep, before = f"label %{label}.body", "  " * (len(self.out.scopes) + 1), self.out.scope.label
        self.out.line(f"br {body}" if some is None else f"br i1 {some.text}, {body}, label %{label}.end")
        self.out.scope.lines += [
            f"{label}.body:",
            f"{deep}%{label} = phi i64 [ {start.text}, %{before} ], [ %{label}.next, %{inner.label} ]",
            *[f"{deep}{i.text} = phi i64 [ 0, %{before} ], [ {i.text}.next, %{inner.label} ]" for i in state.strides],
            *carried(self.out, state, inner, deep),
            *inner.lines,
            *[f"{deep}{i.text}.next = add nsw i64 {i.text}, {x.text}" for i, x in state.strides.items()],
            f"{deep}%{label}.next = add nuw nsw i64 %{label}, 1",
            f"{deep}%{label}.more = icmp slt i64 %{label}.next, {stop.text}",
            f"{deep}br i1 %{label}.more, {body}, label %{label}.end",
            f"{label}.end:",
        ]
        self.out.scope.label = f"{label}.end"
        after_loop(self.out, state, inner, before)

    def close_if(self, condition: Ref, then: Scope, otherwise: Scope | None) -> None:
        end, before = f"{then.entry}.end", self.out.scope.label
        no = end if otherwise is None else otherwise.entry
        self.out.line(f"br i1 {condition.text}, label %{then.entry}, label %{no}")
        for side in (then, otherwise):
            if side is not None:
                leave = "  " * (len(self.out.scopes) + 1) + f"br label %{end}"
                self.out.scope.lines += [f"{side.entry}:", *side.lines, leave]
        self.out.scope.lines.append(f"{end}:")
        self.out.scope.label = end
        after_branch(self.out, then, otherwise, before)

    def call_microkernel(self, s: Call) -> None:
        link = link_of(s.kernel, self.out.target)
        self.links[link.symbol] = link
        meaning = meaning_of(s.kernel)
        args = [f"ptr {self.access.pointer(self.out.memory[name], offset).text}" for name, offset in s.buffers]
        args += [f"{memory_type(p.dtype)} {self.access.to_memory(self.out.values.emit(v)).text}"
                 for p, v in zip(meaning.scalars, s.scalars, strict=True)]
        args += [f"i64 {index(self.out, e).text}" for e in s.dims]
        self.declarations[link.symbol] = [a.split(" ")[0] for a in args]
        self.out.line(f"call void @{link.symbol}({', '.join(args)})")

    def barrier(self) -> None:
        raise InternalError(f"[render] {self.out.function.name}: a CPU program has no work-groups to join")
