"""Loads and stores in any language: which are scalars, vectors, masked, or one element after another."""
from __future__ import annotations

from typing import TYPE_CHECKING

from minigrad.codegen.ir.nodes import Store
from minigrad.codegen.render.index import by_lane, far_step, lane_steps
from minigrad.codegen.render.refs import Memory, Ref
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, bounds, to_text, variables, varying
from minigrad.value import value_atoms

if TYPE_CHECKING:
    from minigrad.codegen.render.emitter import Emitter


def load(out: Emitter, memory: Memory, offset: Index, mask: Ref | None) -> Ref:
    """The value of memory at an offset, in each lane where the mask is true."""
    if type(memory.size) is int and memory.size == 0:
        return out.constant(0, memory.dtype)
    # What is loaded to be an index is only known to be one where the mask is true, so it stays under the mask too.
    proven = (mask is not None or (memory.place == "in" and could_move(out, offset))) \
        and in_bounds(out, memory, offset) and (mask is None or not value_atoms(offset))
    if proven:
        mask = None
    floor, offset = out.load_floor(memory, proven), place_of(out, memory, offset)
    saved, out.under = out.under, mask
    split = by_lane(out, offset)
    result: Ref | None = None
    if split is not None and split[1] == 0:
        mask = out.language.any_lane(mask) if mask is not None and mask.lanes > 1 else mask
        result = out.access.load_scalar(memory, offset, None, mask, floor)
    elif split is not None:
        result = out.access.load_vector(memory, split[0], split[1], mask, floor)
    else:
        far = far_step(out, offset)
        steps = lane_steps(out, offset) if mask is None and far is None else None
        if far is not None:
            result = out.access.load_square(memory, *far, mask, floor)
        elif steps is not None:
            result = out.access.load_steps(memory, *steps, floor)
    if result is None:
        lanes = [i if i < out.real_width else 0 for i in range(out.width)]
        masks = [out.language.extract(mask, i) if mask is not None and mask.lanes > 1 else mask for i in lanes]
        parts = [out.access.load_scalar(memory, offset, i, m, floor) for i, m in zip(lanes, masks, strict=True)]
        result = out.language.gather_lanes(parts)
    out.under = saved
    return result


def write_slot(out: Emitter, memory: Memory, slot: int, value: Ref, mask: Ref | None) -> None:
    if value.lanes > memory.lanes or (mask is not None and mask.lanes > memory.lanes):
        raise InternalError(f"[render] {out.function.name}: register {memory.name} was allocated outside the "
                            f"vector loop; expected one value for all lanes, got one per lane")
    value = out.spread(value, memory.lanes)
    if mask is not None:
        value = out.language.operation("where", [mask, value, out.storage.read_slot(memory, slot)], memory.dtype)
    out.storage.write_slot(memory, slot, value)


def write(out: Emitter, memory: Memory, s: Store, mask: Ref | None) -> None:
    """Stores the value of a statement where the mask is true."""
    value = out.values.emit(s.value, mask)
    if memory.place == "register":
        write_slot(out, memory, slot(out, memory, out.copies.at(s.offset)), value, mask)
        return
    offset = place_of(out, memory, out.copies.at(s.offset))
    saved, out.under = out.under, mask
    split = by_lane(out, offset)
    if split is not None and split[1] == 0:
        if value.lanes > 1:
            raise InternalError(f"[render] {out.function.name}: store to {s.buffer}[{to_text(offset)}] "
                                f"expected one value for all lanes, got one per lane")
        out.access.store_scalar(memory, offset, None, value, out.language.any_lane(mask) if mask is not None else None)
    elif split is not None and split[1] == 1:
        out.access.store_vector(memory, split[0], out.spread(value, out.width), mask)
    elif split is None or not out.access.store_strided(memory, split[0], split[1], value, mask):
        for i in range(out.real_width):
            part = out.language.extract(value, i) if value.lanes > 1 else value
            own = out.language.extract(mask, i) if mask is not None else None
            out.access.store_scalar(memory, offset, i, part, own)
    memory.version += 1
    out.under = saved


def slot(out: Emitter, memory: Memory, offset: Index) -> int:
    if type(offset) is int and 0 <= offset < len(memory.slots):
        return offset
    raise InternalError(f"[render] {out.function.name}: register {memory.name}[{to_text(offset)}] "
                        f"expected a constant below {len(memory.slots)}; unroll the loop over it")


def in_bounds(out: Emitter, memory: Memory, offset: Index) -> bool:
    """True where every offset that the variables' bounds allow is inside the buffer."""
    if isinstance(memory.size, int):
        lo, hi = out.copies.range_of(offset)
        return 0 <= lo and hi < memory.size
    if type(memory.size) is Var and memory.size not in variables(offset):
        return isinstance(offset, int) and 0 <= offset < bounds(memory.size)[0]  # no more of it is known
    if out.copies.range_of(offset)[0] < 0:
        return False
    whole, constant = (0, offset) if isinstance(offset, int) else (varying(offset), offset.const)
    key = "room", memory.size, whole
    room = out.memo.get(key)
    if room is None:
        room = out.memo[key] = bounds(memory.size - 1 - whole)[0]
    return room >= constant


def could_move(out: Emitter, offset: Index) -> bool:
    """True where a load from a buffer that is never written, without a mask, would leave a branch if it is in
    bounds: its address is known outside."""
    floor = out.safe_floor()
    return floor > 0 and \
        all([v not in out.variables or out.variables[v].level < floor for v in variables(offset)])


def place_of(out: Emitter, memory: Memory, offset: Index) -> Index:
    """Memory allocated inside a vector loop holds one element per lane at each offset."""
    if memory.lanes == 1 or out.lane is None:
        return offset
    return offset * memory.lanes + (out.lane - out.first_lane)
