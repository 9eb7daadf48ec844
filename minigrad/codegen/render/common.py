"""What both renderers share: `Emitter` walks the statements and values of a loop IR function.

A renderer supplies the texts of instructions and control structures (the abstract methods in `place.py`); where they go
is decided there, index arithmetic is in `index.py`. Read `place.py` first.
"""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.ir.nodes import Alloc, Barrier, Call, Function, If, Let, Loop, Prefetch, Stmt, Store
from minigrad.codegen.monoid import MONOIDS
from minigrad.codegen.render.copies import Maker, Step
from minigrad.codegen.render.halves import HalfEmitter
from minigrad.codegen.render.place import INDEX, Memory, Ref, Scope
from minigrad.codegen.transforms.math import FUNCTIONS, expanded
from minigrad.codegen.value_walk import Rewriter
from minigrad.dtype import bool_
from minigrad.errors import InternalError
from minigrad.expr import Index, to_text
from minigrad.value import BINARY, UNARY, Value, value_atoms

_ARITHMETIC = UNARY | BINARY | {"fma"}


class Emitter(HalfEmitter):
    """Statements and values to instructions; abstract until a renderer adds the texts."""

    def __init__(self, function: Function):
        super().__init__(function)
        self.formulas: dict[Value, Value] = {}
        self.makers = {
            "const": self.make_const, "local": self.make_local, "index": self.index_value, "load": self.make_load,
            "guard": self.guarded, "across": self.make_across, "cast": self.make_cast, "bitcast": self.make_cast,
            "where": self.make_where}

    # ---- values ----

    def value(self, root: Value, mask: Ref | None = None) -> Ref:
        """Emits a value whose loads happen only where `mask` is true; iterative, each part once."""
        step = self.steps.get(root) or self.learn(root)
        copy = self.copy
        if step.spelled and any([copy[x] is not x for x in step.by_copy]):
            return self.value(Rewriter(copy).value(root), mask)
        key = self.key_of(step, mask)
        ref = self.kept_in(key).get(key)
        if ref is not None:
            return ref
        stack = [key]
        while stack:
            key = stack[-1]
            step, m = key[0], key[1]
            parts, under = (step.parts, m) if step.inside is None else self.sides(step, m)
            refs: list[Ref] = []
            for part in parts:
                if part.op == "local":
                    refs.append(self.locals[part.value.attr])
                    continue
                if part.op == "const":
                    ref = part.ref
                    if ref is None:
                        ref = part.ref = part.make(part.value, m, refs)
                    refs.append(ref)
                    continue
                n = under if part is step.inside else m
                k = self.key_of(part, n) if part.by_copy else (part, n if part.loads else None)
                table = self.memo if part.lasts and len(k) == 2 + len(part.by_copy) else self.brief
                ref = table.get(k)
                if ref is None:
                    if part.parts:
                        stack.append(k)
                        break
                    ref = table[k] = part.make(part.value, n, refs)
                refs.append(ref)
            else:
                stack.pop()
                refs.reverse()
                ref = self.kept_in(key)[key] = step.make(step.value, m, refs)
        assert ref is not None
        return ref

    def parts_of(self, v: Value) -> tuple[tuple[Value, ...], Maker]:
        """What a value is made of, and how, given that; functions are their formulas."""
        if v.op in FUNCTIONS:
            formula = self.formulas.get(v)
            if formula is None:
                formula = self.formulas[v] = expanded(v.op, v.args)
            return (formula,), self.same
        make = self.makers.get(v.op)
        if make is None:
            if v.op not in _ARITHMETIC:
                raise InternalError(f"[render] {self.function.name}: cannot render value {v.op}")
            make = self.arithmetic
        return v.args, make

    def same(self, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
        return args[0]

    def arithmetic(self, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
        """An operation lane by lane."""
        lanes = args[0].lanes
        for r in args:
            if r.lanes != lanes:
                lanes = max(lanes, r.lanes)
                args = [self.spread(r, lanes) for r in args]
        return self.operation(v.op, args, v.dtype)

    def make_const(self, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
        return self.constant(v.attr, v.dtype)

    def make_local(self, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
        return self.locals[v.attr]

    def make_load(self, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
        name, (offset,) = v.attr
        memory = self.memory[name]
        if self.copy:
            offset = self.at(offset)
        if memory.slots:
            return self.read_slot(memory, self.slot(memory, offset))
        return self.load(memory, offset, mask)

    def make_across(self, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
        return self.across(MONOIDS[v.attr].combine, self.spread(args[0], self.width))

    def make_cast(self, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
        return self.convert(args[0], v.dtype) if v.op == "cast" else self.reinterpret(args[0], v.dtype)

    def make_where(self, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
        lanes = max([r.lanes for r in args])
        return self.operation("where", [args[0], self.spread(args[1], lanes), self.spread(args[2], lanes)], v.dtype)

    def sides(self, step: Step, mask: Ref | None) -> tuple[Sequence[Step], Ref | None]:
        """The parts of a guard that are wanted, and the mask of the one inside."""
        own = self.own_mask(step.value, mask)
        if own is not None and own.literal is False:
            return step.parts[:1], None
        return step.parts, self.conjunction(mask, own)

    def own_mask(self, v: Value, under: Ref | None) -> Ref | None:
        """The mask of a guard's conditions in this copy; None where they are true, a literal where one is false."""
        conditions = self.left(v.attr) if self.copy else v.attr
        if conditions is None:
            return self.constant(False, bool_)
        saved, self.under = self.under, under
        mask = self.conditions(conditions)
        self.under = saved
        return mask

    def guarded(self, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
        """A guard, given both sides, or the second one where the first is never wanted."""
        if len(args) == 1:
            return args[0]
        inside, otherwise = args
        own = self.own_mask(v, mask)
        if own is None:
            return inside
        both = self.conjunction(mask, own)
        zero = v.args[1].op == "const" and repr(v.args[1].attr) in ("0", "0.0", "False")
        if zero and inside.zero_outside is not None and inside.zero_outside is both and own is both:
            return inside
        lanes = max(own.lanes, inside.lanes, otherwise.lanes)
        return self.operation("where", [own, self.spread(inside, lanes), self.spread(otherwise, lanes)], v.dtype)

    def index_value(self, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
        """An index as a value: `rest + stride * lane` in the value's own type, which wraps alike."""
        saved, self.under = self.under, mask
        split = self.by_lane(v.attr)  # type: ignore[arg-type]
        if split is None:
            parts = [self.convert(self.index(v.attr, i), v.dtype) for i in range(self.width)]  # type: ignore[arg-type]
            result = self.gather_lanes(parts)
        else:
            result = self.convert(self.index(split[0]), v.dtype)
            if split[1]:
                steps = self.gather_lanes([self.constant(split[1] * i, v.dtype) for i in range(self.width)])
                result = self.operation("add", [self.splat(result, self.width), steps], v.dtype)
        self.under = saved
        return result

    def pairwise(self, combine: str, parts: list[Ref]) -> Ref:
        """Neighbours first, until one is left."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=False)
            last = parts[-1:] if len(parts) % 2 else []
            parts = [self.operation(combine, pair, pair[0].dtype) for pair in pairs] + last
        return parts[0]

    # ---- memory ----

    def load(self, memory: Memory, offset: Index, mask: Ref | None) -> Ref:
        if isinstance(memory.size, int) and memory.size == 0:
            return self.constant(0, memory.dtype)
        # What is loaded to be an index is only known to be one where the mask is true, so it stays under the mask too.
        proven = (mask is not None or self.could_move(memory, offset)) and self.in_bounds(memory, offset) \
            and (mask is None or not value_atoms(offset))
        if proven:
            mask = None
        floor, offset = self.load_floor(memory, proven), self.place_of(memory, offset)
        saved, self.under = self.under, mask
        split = self.by_lane(offset)
        result: Ref | None = None
        if split is not None and split[1] == 0:
            mask = self.any_lane(mask) if mask is not None and mask.lanes > 1 else mask
            result = self.load_scalar(memory, offset, None, mask, floor)
        elif split is not None:
            result = self.load_vector(memory, split[0], split[1], mask, floor)
        else:
            far = self.far_step(offset) if mask is None else None
            steps = self.lane_steps(offset) if mask is None and far is None else None
            if far is not None:
                result = self.load_square(memory, *far, floor)
            elif steps is not None:
                result = self.load_steps(memory, *steps, floor)
        if result is None:
            lanes = [i if i < self.real_width else 0 for i in range(self.width)]
            masks = [self.extract(mask, i) if mask is not None and mask.lanes > 1 else mask for i in lanes]
            parts = [self.load_scalar(memory, offset, i, m, floor) for i, m in zip(lanes, masks, strict=True)]
            result = self.gather_lanes(parts)
        self.under = saved
        return result

    def slot(self, memory: Memory, offset: Index) -> int:
        if not isinstance(offset, int) or not 0 <= offset < len(memory.slots):
            raise InternalError(f"[render] {self.function.name}: register {memory.name}[{to_text(offset)}] "
                                f"expected a constant below {len(memory.slots)}; unroll the loop over it")
        return offset

    def store(self, s: Store) -> None:
        """A store under conditions that are the same in every lane is a branch; others are masked."""
        memory = self.memory[s.buffer]
        mask = None
        if s.conditions:
            conditions = self.left(s.conditions)
            if conditions is None:
                return
            mask = self.conditions(conditions)
        if mask is not None and mask.lanes == 1 and memory.place != "register":
            self.branch(mask, (Store(s.buffer, s.offset, s.value),), ())
            return
        value = self.value(s.value, mask)
        if memory.place == "register":
            self.store_slot(memory, self.slot(memory, self.at(s.offset)), value, mask)
            return
        offset = self.place_of(memory, self.at(s.offset))
        saved, self.under = self.under, mask
        split = self.by_lane(offset)
        if split is not None and split[1] == 0:
            if value.lanes > 1:
                raise InternalError(f"[render] {self.function.name}: store to {s.buffer}[{to_text(offset)}] "
                                    f"expected one value for all lanes, got one per lane")
            self.store_scalar(memory, offset, None, value, self.any_lane(mask) if mask is not None else None)
        elif split is not None and split[1] == 1:
            self.store_vector(memory, split[0], self.spread(value, self.width), mask)
        elif split is None or not self.store_strided(memory, split[0], split[1], value, mask):
            for i in range(self.real_width):
                part = self.extract(value, i) if value.lanes > 1 else value
                self.store_scalar(memory, offset, i, part, self.extract(mask, i) if mask is not None else None)
        memory.version += 1
        self.under = saved

    def store_slot(self, memory: Memory, slot: int, value: Ref, mask: Ref | None) -> None:
        if value.lanes > memory.lanes or (mask is not None and mask.lanes > memory.lanes):
            raise InternalError(f"[render] {self.function.name}: register {memory.name} was allocated outside the "
                                f"vector loop; expected one value for all lanes, got one per lane")
        value = self.spread(value, memory.lanes)
        if mask is not None:
            value = self.operation("where", [mask, value, self.read_slot(memory, slot)], memory.dtype)
        self.write_slot(memory, slot, value)

    # ---- statements ----

    def block(self, body: Sequence[Stmt]) -> None:
        """Statements in order; names given in it end with it."""
        locals_, memory = self.locals, self.memory
        own = False
        for s in body:
            if self.brief:
                self.brief = {}
            kind = type(s)
            if kind is Store:
                self.store(s)  # type: ignore[arg-type]
                continue
            if not own and (kind is Let or kind is Alloc):
                self.locals, self.memory, own = dict(locals_), dict(memory), True
            if isinstance(s, Let):
                self.locals[s.name] = self.value(s.value)
            elif isinstance(s, Loop):
                self.loop(s)
            elif isinstance(s, If):
                self.choose(s)
            elif isinstance(s, Alloc):
                self.memory[s.name] = self.allocate(s)
            elif isinstance(s, Call):
                self.microkernel(s)
            elif isinstance(s, Prefetch):
                self.prefetch(self.memory[s.buffer], self.at(s.offset), s.far)
            elif isinstance(s, Barrier):
                self.epoch += 1
                self.barrier()
        if own:
            for s in body:
                if isinstance(s, Alloc) and s.scope == "register":
                    self.forget(self.memory[s.name])
            self.locals, self.memory = locals_, memory

    def microkernel(self, s: Call) -> None:
        if self.copy:
            buffers = tuple([(name, self.at(offset)) for name, offset in s.buffers])
            s = Call(s.kernel, buffers, s.scalars, tuple([self.at(e) for e in s.dims]))
        self.call_microkernel(s)
        for name, _ in s.buffers:
            self.memory[name].version += 1

    def choose(self, s: If) -> None:
        conditions = self.left(s.conditions)
        if not conditions:
            self.block(s.otherwise if conditions is None else s.then)
            return
        self.comment("if " + " and ".join(f"{to_text(e)} >= 0" for e in conditions))
        mask = self.conditions(conditions)
        if mask is not None and mask.lanes > 1:
            raise InternalError(f"[render] {self.function.name}: an if inside a vector loop may not depend on the lane")
        self.branch(mask, s.then, s.otherwise)

    def loop(self, s: Loop) -> None:
        if s.kind == "unroll":
            self.unrolled(s)
            return
        var, s = s.var, self.placed(s)
        self.comment(f"for {s.var.name} in {to_text(s.start)}..{to_text(s.stop)} {s.kind}")
        self.brief = {}
        memo = self.memo
        self.memo = {} if s.kind == "vector" else dict(memo)
        self.iterations(s)
        self.memo = memo
        self.copy.pop(var, None)

    def unrolled(self, s: Loop) -> None:
        """The body once per iteration, in the same scope."""
        for number in self.numbers(s):
            self.copy[s.var] = number
            self.block(s.body)
        self.copy.pop(s.var, None)

    def iterations(self, s: Loop) -> None:
        """A loop that is one in the text, or lanes."""
        if s.kind == "vector":
            if s.stop == 1:
                self.variables[s.var] = self.constant(0, INDEX)
                self.block(s.body)
                return
            if self.lane is not None or s.start != 0 or not isinstance(s.stop, int):
                raise InternalError(f"[render] {self.function.name}: vector loop {s.var.name} expected 0..constant, "
                                    f"not nested")
            self.lane = s.var
            self.set_width(s.stop, s.stop)
            self.vector_body(s)
            self.lane = None
            self.set_width(1, 1)
            return
        trips = s.stop - s.start
        if self.range_of(trips)[1] <= 0:
            return
        if trips == 1 and s.kind == "serial":
            self.variables[s.var] = self.index(s.start)
            self.block(s.body)
            return
        self.settle()
        variable, state = self.open_loop(s)
        self.variables[s.var] = variable
        self.epoch += 1
        self.block(s.body)
        self.settle()
        self.epoch += 1
        self.close_loop(s, self.scopes.pop(), state)

    def vector_body(self, s: Loop) -> None:
        """The statements of a vector loop for all its lanes."""
        self.block(s.body)

    def branch(self, mask: Ref | None, then: Sequence[Stmt], otherwise: Sequence[Stmt]) -> None:
        if mask is None:
            self.block(then)
            return
        self.settle()
        self.brief = {}
        memo = self.memo
        sides: list[Scope | None] = []
        for body in (then, otherwise):
            if not body and sides:
                sides.append(None)
                continue
            self.epoch += 1
            self.scopes.append(Scope(crossable=False, label=self.name("branch.")))
            self.memo = dict(memo)
            self.block(body)
            self.settle()
            sides.append(self.scopes.pop())
        self.memo = memo
        self.epoch += 1
        assert sides[0] is not None
        self.close_if(mask, sides[0], sides[1])
