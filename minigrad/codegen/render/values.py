"""Values in any language: `Values` takes them apart and remembers what is emitted; `MAKERS` has a function for each
operation, and guards know what is needed of them."""
from __future__ import annotations

from typing import TYPE_CHECKING

from minigrad.codegen.kernel.monoid import MONOIDS
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.render.accesses import load, slot
from minigrad.codegen.render.conditions import conjunction, mask_of
from minigrad.codegen.render.index import by_lane, index
from minigrad.codegen.render.refs import Ref
from minigrad.codegen.render.steps import Maker, Step, Steps
from minigrad.codegen.transforms.math import FUNCTIONS
from minigrad.dtype import bool_
from minigrad.value import BINARY, UNARY, Value

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter

_ARITHMETIC = (UNARY | BINARY | {"fma"}).difference(FUNCTIONS)


class Values:
    """Values to instructions."""

    def __init__(self, out: Emitter):
        self.out, self.steps = out, Steps(out, MAKERS)

    def emit(self, root: Value, mask: Ref | None = None) -> Ref:
        """Emits a value whose loads happen only where `mask` is true; iterative, each part once."""
        out, steps = self.out, self.steps
        step = steps.table.get(root)
        if step is None:
            step = steps.learn(root)
        elif step.ref is not None:
            return step.ref
        copy = out.copies.copy
        if step.spelled and any([copy[x] is not x for x in step.by_copy]):
            return self.emit(Rewriter(copy).value(root), mask)
        table, key = steps.kept(step, mask)
        ref = table.get(key)
        if ref is not None:
            return ref
        stack = [(step, mask, table, key)]
        while True:
            step, m, table, key = stack[-1]
            inside, parts, under = step.inside, step.parts, m
            if inside is not None:
                parts, under = sides(out, step, m)
            refs: list[Ref] = []
            for part in parts:
                if part.op == "local":
                    refs.append(out.locals[part.value.name])
                    continue
                if part.ref is not None:
                    refs.append(part.ref)
                    continue
                if part.op == "load":
                    memory = out.memory[part.value.buffer]
                    if memory.slots:
                        offset = out.copies.at(part.value.indices[0])
                        refs.append(out.storage.read_slot(memory, slot(out, memory, offset)))
                        continue
                n = under if part is inside else m
                its_table, its_key = steps.kept(part, n)
                ref = its_table.get(its_key)
                if ref is None:
                    if part.parts:
                        stack.append((part, n, its_table, its_key))
                        break
                    ref = its_table[its_key] = part.make(out, part.value, n, refs)
                    if part.op == "const":
                        part.ref = ref
                refs.append(ref)
            else:
                stack.pop()
                refs.reverse()
                ref = table[key] = step.make(out, step.value, m, refs)
                if not stack:
                    return ref


def arithmetic(out: Emitter, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
    """An operation lane by lane."""
    lanes = args[0].lanes
    for r in args:
        if r.lanes != lanes:
            lanes = max([r.lanes for r in args])
            args = [r if r.lanes == lanes else out.spread(r, lanes) for r in args]
            break
    return out.language.operation(v.op, args, v.dtype)


def make_const(out: Emitter, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
    return out.constant(v.number, v.dtype)


def make_local(out: Emitter, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
    return out.locals[v.name]


def make_load(out: Emitter, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
    memory, offset = out.memory[v.buffer], v.indices[0]
    if out.copies.copy:
        offset = out.copies.at(offset)
    if memory.slots:
        return out.storage.read_slot(memory, slot(out, memory, offset))
    return load(out, memory, offset, mask)


def make_across(out: Emitter, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
    return out.language.across(MONOIDS[v.monoid].combine, [out.spread(args[0], out.width)])[0]


def make_cast(out: Emitter, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
    return out.language.convert(args[0], v.dtype) if v.op == "cast" else out.language.reinterpret(args[0], v.dtype)


def make_where(out: Emitter, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
    lanes = max([r.lanes for r in args])
    return out.language.operation("where", [args[0], out.spread(args[1], lanes), out.spread(args[2], lanes)], v.dtype)


def sides(out: Emitter, step: Step, mask: Ref | None) -> tuple[tuple[Step, ...], Ref | None]:
    """The parts of a guard that are wanted, and the mask of the one inside."""
    own = own_mask(out, step.value, mask)
    if own is not None and own.literal is False:
        return step.parts[:1], None
    return step.parts, conjunction(out, mask, own)


def own_mask(out: Emitter, v: Value, under: Ref | None) -> Ref | None:
    """The mask of a guard's conditions in this copy; None where they are true, a literal where one is false."""
    left = out.copies.left(v.conditions) if out.copies.copy else v.conditions
    if left is None:
        return out.constant(False, bool_)
    saved, out.under = out.under, under
    mask = mask_of(out, left)
    out.under = saved
    return mask


def guarded(out: Emitter, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
    """A guard, given both sides, or the second one where the first is never wanted."""
    if len(args) == 1:
        return args[0]
    inside, otherwise = args
    own = own_mask(out, v, mask)
    if own is None:
        return inside
    lanes = max(own.lanes, inside.lanes, otherwise.lanes)
    return out.language.operation("where", [own, out.spread(inside, lanes), out.spread(otherwise, lanes)], v.dtype)


def index_value(out: Emitter, v: Value, mask: Ref | None, args: list[Ref]) -> Ref:
    """An index as a value: `rest + stride * lane` in the value's own type, which wraps alike."""
    saved, out.under = out.under, mask
    split = by_lane(out, v.index)
    if split is None:
        parts = [out.language.convert(index(out, v.index, i), v.dtype) for i in range(out.width)]
        result = out.language.gather_lanes(parts)
    else:
        result = out.language.convert(index(out, split[0]), v.dtype)
        if split[1]:
            steps = out.language.gather_lanes([out.constant(split[1] * i, v.dtype) for i in range(out.width)])
            result = out.language.operation("add", [out.language.splat(result, out.width), steps], v.dtype)
    out.under = saved
    return out.language.index_value(result)


MAKERS: dict[str, Maker] = {
    **dict.fromkeys(_ARITHMETIC, arithmetic), "const": make_const, "local": make_local, "index": index_value,
    "load": make_load, "guard": guarded, "across": make_across, "cast": make_cast, "bitcast": make_cast,
    "where": make_where}
