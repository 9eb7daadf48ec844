"""Loop IR to LLVM IR text (LLVM 22, opaque pointers) with explicit vectors.

A program is two functions: `name`, which has the ABI of CPU programs and unpacks the argument table, and `name.body`,
whose pointer parameters are `noalias`; or one that is both where the rest of LLVM's work is little (`QUICK`). Vector
loops become vector types; what differs by lane under a condition is read and written by masked loads and stores, a
scalar under a condition is read from a block of zeros instead. Register buffers are values (`llvm_registers.py`).
Floating-point arithmetic may be contracted into fused multiply-adds and is never reassociated. Passes wanted on the
result: instcombine, simplifycfg; sroa for microkernels that have variables.
"""
from __future__ import annotations

from functools import lru_cache

from minigrad.codegen.ir.nodes import Alloc, BufferParam, Call, Function, Loop, ScalarParam, Stmt, Store
from minigrad.codegen.ir.text import meaning_of
from minigrad.codegen.ir.walk import statements
from minigrad.codegen.microkernels.microkernel import Microkernel, symbol_of
from minigrad.codegen.render.llvm_registers import LlvmRegisters
from minigrad.codegen.render.llvm_text import memory_type
from minigrad.codegen.render.place import INDEX, Memory, OpenLoop, Ref, Scope, argument_kinds
from minigrad.codegen.transforms.read_words import read_words
from minigrad.codegen.transforms.roll import roll
from minigrad.dtype import bool_
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, bounds, variables
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
    function, views = read_words(roll(function))
    emitter = LlvmEmitter(function, target)
    for view, source in views:
        emitter.memory[view.name] = Memory(view.name, view.dtype, view.size, "in", f"%{source}")
    source = emitter.render()
    return Program(function.name, "llvm", source, argument_kinds(function), emitter.scratch,
                   links=tuple(emitter.links.values()))


@lru_cache(maxsize=1024)
def link_of(kernel: Microkernel, target: Target) -> Link:
    """The Link of a microkernel for its calls: its implementation where that fits, else its meaning, compiled."""
    if kernel.implementation is not None and kernel.fits(target):
        return Link(symbol_of(kernel.name, kernel.implementation), kernel.name, kernel.implementation, kernel.language)
    source = LlvmEmitter(meaning_of(kernel), target).render_callable(kernel.name)
    return Link(symbol_of(kernel.name, source), kernel.name, source)


def has_rows_and_columns(body: tuple[Stmt, ...]) -> bool:
    """True where a loop sums up a tile of two variables."""
    return any(type(s) is Store and len(variables(s.offset)) > 1 for s in statements(body))


class LlvmEmitter(LlvmRegisters):
    """See `Emitter`: the whole text, and control structures."""

    # ---- the whole text ----

    def render(self) -> str:
        """The program: `void name(const u64 *args, i64 begin, i64 end, u8 *scratch)`."""
        self.emit_body()
        name, body = self.function.name, self.scopes[0].lines
        head = f"define void @{name}(ptr %args., {', '.join(WORK)}) nounwind {{"
        if self.is_quick:
            lines = [QUICK, *self.head(), head, "entry:", *self.unpacked("\n".join(body)), *body, "  ret void", "}"]
        else:
            passed = [*(f"{kind} %{p.name}" for p, kind in self.argument_types()), *WORK]
            lines = [*self.body_function(), head, *self.unpacked(),
                     f"  call void @{name}.body({', '.join(passed)})", "  ret void", "}"]
        lines += [f"declare void @{symbol}({', '.join(types)})" for symbol, types in self.declarations.items()]
        return "\n".join([*lines, ""])

    def render_callable(self, name: str) -> str:
        """A function to be called with the parameters themselves, for one that has no parallel loop."""
        self.emit_body()
        lines = [*([QUICK] if self.is_quick else []), *self.body_function()]
        own = len(self.function.scalars) + len(self.function.dims)
        params = self.parameters()[:len(self.function.buffers) + own]
        passed = [*(p.replace("noalias ", "").replace("readonly ", "") for p in params), "i64 0", "i64 1", "ptr null"]
        return "\n".join([*lines, f"define void @{name}({', '.join(params)}) nounwind {{",
                          f"  call void @{self.function.name}.body({', '.join(passed)})", "  ret void", "}", ""])

    def emit_body(self) -> None:
        """Fills the outermost scope."""
        f = self.function
        for s in f.scalars:
            text = f"%{s.name}"
            if s.dtype is bool_:
                text = self.pure(f"icmp ne i8 {text}, 0", bool_, 1, ()).text
            self.locals[s.name] = Ref(text, s.dtype)
        for d in f.dims:
            self.variables[d] = Ref(f"%{d.name}", INDEX)
        for b in f.buffers:
            text = f"%{b.name}"
            if b.start is not None:
                start = f"getelementptr {memory_type(b.dtype)}, ptr {text}, i64 %{b.start.name}"
                text = self.pure(start, b.dtype, 1, (), b.name).text
            self.memory[b.name] = Memory(b.name, b.dtype, b.size, b.mode, text)
        self.block(f.body)

    @property
    def is_quick(self) -> bool:
        """True where the source may begin with `QUICK`."""
        simple = len(self.function.dims) > 0 or not self.odd_tile
        return self.had_tile and simple and self.target.registers > 16

    def head(self) -> list[str]:
        """The lines before the functions."""
        f = self.function
        lines = [f"; func {f.name}"]
        if self.zeros:
            block = f"[{self.zeros} x i8] zeroinitializer, align 64"
            lines.append(f"@{f.name}.zeros = private unnamed_addr constant {block}")
        return lines

    def body_function(self) -> list[str]:
        """`name.body`, with what stands before it."""
        start = f"define internal void @{self.function.name}.body({', '.join(self.parameters())}) nounwind {{"
        return [*self.head(), start, "entry:", *self.scopes[0].lines, "  ret void", "}", ""]

    def parameters(self) -> list[str]:
        f = self.function
        buffers = [f"ptr noalias{' readonly' if b.mode == 'in' else ''} %{b.name}" for b in f.buffers]
        scalars = [f"{memory_type(s.dtype)} %{s.name}" for s in f.scalars]
        dims = [f"i64 %{d.name}" for d in f.dims]
        return [*buffers, *scalars, *dims, *WORK[:2], "ptr noalias %scratch."]

    def argument_types(self) -> list[tuple[BufferParam | ScalarParam | Var, str]]:
        """Each argument with its type in the table."""
        f = self.function
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

    # ---- control ----

    def vector_body(self, s: Loop) -> None:
        """Emits a vector loop. A big register tile starts with all vector registers free: LLVM would else keep
        constants of loops before it in registers across it, and accumulators on the stack. An empty instruction makes
        it put them away."""
        tile = self.slots_of(s.body)
        if self.is_big(tile):
            clobbered = ",".join(f"~{{xmm{i}}}" for i in range(self.target.registers))
            self.line(f'call void asm sideeffect "", "{clobbered}"()')
            self.least_level = len(self.scopes) - 1
        self.vectors, self.squares, self.sums_up = s, None, tile > 0
        super().vector_body(s)
        self.least_level = 0

    def load_floor(self, memory: Memory, proven: bool) -> int:
        """The outermost level for a load. A big tile loads its own operands: before it there are no registers to keep
        them in."""
        return max(super().load_floor(memory, proven), self.least_level)

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
        start = Ref("%begin.", INDEX) if parallel else self.index(s.start)
        stop = Ref("%end.", INDEX) if parallel else self.index(s.stop)
        runs = self.range_of(s.stop - s.start)[0] >= 1
        some = None
        if parallel or not runs:
            some = self.pure(f"icmp slt i64 {start.text}, {stop.text}", bool_, 1, (start, stop), "c")
        self.counter += 1
        label = f"{s.var.name}.{self.counter}"
        self.scopes.append(Scope(crossable=runs or parallel, label=f"{label}.body", held=self.scope.held))
        stored = self.stored_registers(s.body)
        tile = "sse" in self.target.features and any([len(m.slots) >= LEAST_TILE for m in stored])
        self.odd_tile |= tile and (self.in_tile or not has_rows_and_columns(s.body))
        self.in_tile, self.had_tile = tile, self.had_tile or tile
        self.counted, self.strides = f"%{label}" if self.in_tile and start.literal == 0 else "", {}
        state = OpenLoop(label, start, stop, some, self.carry(stored), self.strides)
        return Ref(f"%{label}", INDEX, 1, len(self.scopes) - 1), state

    def close_loop(self, s: Loop, inner: Scope, state: OpenLoop) -> None:
        label, start, stop, some = state.name, state.start, state.stop, state.some
        self.in_tile, self.counted = False, ""
        body, deep, before = f"label %{label}.body", "  " * (len(self.scopes) + 1), self.scope.label
        self.line(f"br {body}" if some is None else f"br i1 {some.text}, {body}, label %{label}.end")
        self.scope.lines += [
            f"{label}.body:",
            f"{deep}%{label} = phi i64 [ {start.text}, %{before} ], [ %{label}.next, %{inner.label} ]",
            *[f"{deep}{i.text} = phi i64 [ 0, %{before} ], [ {i.text}.next, %{inner.label} ]" for i in state.strides],
            *self.carried(state, inner, deep),
            *inner.lines,
            *[f"{deep}{i.text}.next = add nsw i64 {i.text}, {x.text}" for i, x in state.strides.items()],
            f"{deep}%{label}.next = add nuw nsw i64 %{label}, 1",
            f"{deep}%{label}.more = icmp slt i64 %{label}.next, {stop.text}",
            f"{deep}br i1 %{label}.more, {body}, label %{label}.end",
            f"{label}.end:",
        ]
        self.scope.label = f"{label}.end"
        self.after_loop(state, inner, before)

    def close_if(self, condition: Ref, then: Scope, otherwise: Scope | None) -> None:
        end, before = f"{then.entry}.end", self.scope.label
        no = end if otherwise is None else otherwise.entry
        self.line(f"br i1 {condition.text}, label %{then.entry}, label %{no}")
        for side in (then, otherwise):
            if side is not None:
                self.scope.lines += [f"{side.entry}:", *side.lines, "  " * (len(self.scopes) + 1) + f"br label %{end}"]
        self.scope.lines.append(f"{end}:")
        self.scope.label = end
        self.after_branch(then, otherwise, before)

    def call_microkernel(self, s: Call) -> None:
        link = link_of(s.kernel, self.target)
        self.links[link.symbol] = link
        meaning = meaning_of(s.kernel)
        args = [f"ptr {self.pointer(self.memory[name], offset).text}" for name, offset in s.buffers]
        args += [f"{memory_type(p.dtype)} {self.to_memory(self.value(v)).text}"
                 for p, v in zip(meaning.scalars, s.scalars, strict=True)]
        args += [f"i64 {self.index(e).text}" for e in s.dims]
        self.declarations[link.symbol] = [a.split(" ")[0] for a in args]
        self.line(f"call void @{link.symbol}({', '.join(args)})")

    def prefetch(self, memory: Memory, offset: Index, far: bool) -> None:
        p = self.pointer(memory, offset)
        self.line(f"call void @llvm.prefetch.p0(ptr {p.text}, i32 0, i32 {2 if far else 3}, i32 1)")

    def barrier(self) -> None:
        raise InternalError(f"[render] {self.function.name}: a CPU program has no work-groups to join")
