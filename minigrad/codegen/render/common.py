"""The common part of both renderers: `Emitter` walks the statements of a loop IR function.

A renderer supplies the texts of instructions and control structures (the abstract methods in `place.py`); where they go
is decided there, values are in `values.py`, index arithmetic is in `index.py`. Read `place.py` first.
"""
from __future__ import annotations

from collections.abc import Sequence

from minigrad.codegen.ir.nodes import Alloc, Barrier, Call, If, Let, Loop, Prefetch, Stmt, Store
from minigrad.codegen.render.place import INDEX, Memory, Ref, Scope
from minigrad.codegen.render.values import ValueEmitter
from minigrad.errors import InternalError
from minigrad.expr import Index, bounds, to_text
from minigrad.value import value_atoms


class Emitter(ValueEmitter):
    """Statements to instructions; abstract until a renderer adds the texts."""

    # ---- memory ----

    def load(self, memory: Memory, offset: Index, mask: Ref | None) -> Ref:
        if type(memory.size) is int and memory.size == 0:
            return self.constant(0, memory.dtype)
        # What is loaded to be an index is only known to be one where the mask is true, so it stays under the mask too.
        proven = (mask is not None or (memory.place == "in" and self.could_move(offset))) \
            and self.in_bounds(memory, offset) and (mask is None or not value_atoms(offset))
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
            far = self.far_step(offset)
            steps = self.lane_steps(offset) if mask is None and far is None else None
            if far is not None:
                result = self.load_square(memory, *far, mask, floor)
            elif steps is not None:
                result = self.load_steps(memory, *steps, floor)
        if result is None:
            lanes = [i if i < self.real_width else 0 for i in range(self.width)]
            masks = [self.extract(mask, i) if mask is not None and mask.lanes > 1 else mask for i in lanes]
            parts = [self.load_scalar(memory, offset, i, m, floor) for i, m in zip(lanes, masks, strict=True)]
            result = self.gather_lanes(parts)
        self.under = saved
        return result

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
            if type(s) is Store:
                self.store(s)
                continue
            if not own and (kind is Let or kind is Alloc):
                self.locals, self.memory, own = dict(locals_), dict(memory), True
            if type(s) is Let:
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
                if isinstance(s, Alloc):  # nothing reads a register buffer any more
                    for slot in self.memory[s.name].slots:
                        self.scope.held.pop(slot, None)
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
            self.variables[s.var] = self.only_iteration(s)
            self.block(s.body)
            return
        variable, state = self.open_loop(s)
        self.variables[s.var] = variable
        self.epoch += 1
        self.region(s.body)
        self.epoch += 1
        self.close_loop(s, self.scopes.pop(), state)

    def only_iteration(self, s: Loop) -> Ref:
        """The variable of a loop of one iteration. Where its start may leave the variable's bounds outside this scope
        (in another branch), nothing that those bounds prove may move out."""
        start = self.index(s.start)
        lo, hi = self.range_of(s.start)
        if bounds(s.var.lo)[1] <= lo and hi <= bounds(s.var.hi)[0]:
            return start
        return Ref(start.text, start.dtype, start.lanes, len(self.scopes) - 1)

    def vector_body(self, s: Loop) -> None:
        """The statements of a vector loop for all its lanes."""
        self.region(s.body)

    def region(self, body: Sequence[Stmt]) -> None:
        """A block of which all statements run if one does: the body of a loop, a side of a branch."""
        self.block(body)

    def branch(self, mask: Ref | None, then: Sequence[Stmt], otherwise: Sequence[Stmt]) -> None:
        if mask is None:
            self.block(then)
            return
        self.brief = {}
        memo = self.memo
        sides: list[Scope] = []
        for body in (then, otherwise) if otherwise else (then,):
            self.epoch += 1
            self.scopes.append(Scope(crossable=False, label=self.name("branch."), held=self.scope.held))
            self.memo = dict(memo)
            self.region(body)
            sides.append(self.scopes.pop())
        self.memo = memo
        self.epoch += 1
        self.close_if(mask, sides[0], sides[1] if otherwise else None)
