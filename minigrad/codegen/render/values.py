"""Values in any language: `ValueEmitter` takes them apart, remembers what is emitted, and knows what guards need."""
from __future__ import annotations

from abc import abstractmethod

from minigrad.codegen.ir.nodes import Function
from minigrad.codegen.monoid import MONOIDS
from minigrad.codegen.render.copies import Maker, Step
from minigrad.codegen.render.halves import HalfEmitter
from minigrad.codegen.render.place import Memory, Ref
from minigrad.codegen.transforms.math import FUNCTIONS, expanded
from minigrad.codegen.value_walk import Rewriter
from minigrad.dtype import bool_
from minigrad.errors import InternalError, present
from minigrad.expr import Index, to_text
from minigrad.value import BINARY, UNARY, Value

_AT_ONCE = (UNARY | BINARY | {"fma"}).difference(FUNCTIONS)


class ValueEmitter(HalfEmitter):
    """Values to instructions."""

    def __init__(self, function: Function):
        super().__init__(function)
        self.formulas: dict[Value, Value] = {}
        self.makers |= {op: self.arithmetic for op in _AT_ONCE}
        self.makers |= {
            "const": self.make_const, "local": self.make_local, "index": self.index_value, "load": self.make_load,
            "guard": self.guarded, "across": self.make_across, "cast": self.make_cast, "bitcast": self.make_cast,
            "where": self.make_where}

    @abstractmethod
    def load(self, memory: Memory, offset: Index, mask: Ref | None) -> Ref:
        """The value of memory at an offset, in each lane where the mask is true."""

    def slot(self, memory: Memory, offset: Index) -> int:
        if type(offset) is int and 0 <= offset < len(memory.slots):
            return offset
        raise InternalError(f"[render] {self.function.name}: register {memory.name}[{to_text(offset)}] "
                            f"expected a constant below {len(memory.slots)}; unroll the loop over it")

    def value(self, root: Value, mask: Ref | None = None) -> Ref:
        """Emits a value whose loads happen only where `mask` is true; iterative, each part once."""
        step = self.steps.get(root)
        if step is None:
            ref = self.at_once(root, mask)
            if ref is not None:
                return ref
            step = self.learn(root)
        elif step.ref is not None:
            return step.ref
        copy = self.copy
        if step.spelled and any([copy[x] is not x for x in step.by_copy]):
            return self.value(Rewriter(copy).value(root), mask)
        table, key = self.kept(step, mask)
        ref = table.get(key)
        if ref is not None:
            return ref
        stack = [(step, mask, table, key)]
        while stack:
            step, m, table, key = stack[-1]
            inside, parts, under = step.inside, step.parts, m
            if inside is not None:
                parts, under = self.sides(step, m)
            refs: list[Ref] = []
            for part in parts:
                if part.op == "local":
                    refs.append(self.locals[part.value.attr])
                    continue
                if part.ref is not None:
                    refs.append(part.ref)
                    continue
                if part.op == "load":
                    name, (offset,) = part.value.attr
                    memory = self.memory[name]
                    if memory.slots:
                        refs.append(self.read_slot(memory, self.slot(memory, self.at(offset))))
                        continue
                n = under if part is inside else m
                its_table, its_key = self.kept(part, n)
                ref = its_table.get(its_key)
                if ref is None:
                    if part.parts:
                        stack.append((part, n, its_table, its_key))
                        break
                    ref = its_table[its_key] = part.make(part.value, n, refs)
                    if part.op == "const":
                        part.ref = ref
                refs.append(ref)
            else:
                stack.pop()
                refs.reverse()
                ref = table[key] = step.make(step.value, m, refs)
        return present(ref, "[render] expected a value")

    def at_once(self, v: Value, mask: Ref | None) -> Ref | None:
        """A local, a load, or one operation on locals and register buffers; None for other values. Nothing needs to be
        known or remembered of these."""
        op = v.op
        if op == "local":
            return self.locals[v.attr]
        if op == "load":
            return None if v.inner else self.make_load(v, mask, [])
        if op not in _AT_ONCE:
            return None
        refs: list[Ref] = []
        for a in v.args[::-1]:
            if a.op == "local":
                refs.append(self.locals[a.attr])
                continue
            memory = self.memory[a.attr[0]] if a.op == "load" else None
            if memory is None or not memory.slots:
                return None
            refs.append(self.read_slot(memory, self.slot(memory, self.at(a.attr[1][0]))))
        refs.reverse()
        return self.arithmetic(v, None, refs)

    def parts_of(self, v: Value) -> tuple[tuple[Value, ...], Maker]:
        """The operands of a value, and a function that emits it, given those; functions are their formulas."""
        make = self.makers.get(v.op)
        if make is not None:
            return v.args, make
        if v.op not in FUNCTIONS:
            raise InternalError(f"[render] {self.function.name}: cannot render value {v.op}")
        formula = self.formulas.get(v)
        if formula is None:
            formula = self.formulas[v] = expanded(v.op, v.args)
        return (formula,), self.same

    def same(self, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
        return args[0]

    def arithmetic(self, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
        """An operation lane by lane."""
        lanes = args[0].lanes
        for r in args:
            if r.lanes != lanes:
                lanes = max([r.lanes for r in args])
                args = [r if r.lanes == lanes else self.spread(r, lanes) for r in args]
                break
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

    def sides(self, step: Step, mask: Ref | None) -> tuple[tuple[Step, ...], Ref | None]:
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
        split = self.by_lane(v.attr)
        if split is None:
            parts = [self.convert(self.index(v.attr, i), v.dtype) for i in range(self.width)]
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
