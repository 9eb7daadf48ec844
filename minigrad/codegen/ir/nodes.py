"""Loop IR: how one stage of a kernel runs. Small, structured, immutable.

    function := "func" name "(" param, ... ")" NEWLINE stmt+
    param    := ("in" | "out" | "inout") name ":" dtype "[" size "]" ["from" dim]
                                                                          a buffer of `size` elements, flat
              | name ":" dtype                                            a scalar argument (read as local(name))
              | name ":" "index" "in" lo ".." hi                          a symbolic dim (read as an index variable)
    stmt     := "for" var ["[" lo ".." hi "]"] "in" start ".." stop kind ":" NEWLINE stmt+
                    kind: serial | parallel | group | item | vector | unroll
                    lo..hi bound the variable where start..stop-1 does not
              | "alloc" name ":" dtype "[" size "]" scope                 scope: register | scratch | local
              | "let" name "=" value
              | buffer "[" offset "]" ["if" e ">= 0" "and" ...] "=" value
              | "if" e ">= 0" "and" ... ":" NEWLINE stmt+ ["else" ":" NEWLINE stmt+]
              | "call" microkernel "(" buffer "[" offset "]", ..., value, ..., index, ... ")"
              | "barrier"
              | ("prefetch" | "prefetch_far") buffer "[" offset "]"       nothing; its line will be read: a hint
              | "$" number "=" value             a value used more than once; names and values are as in value_text.py

Rules, checked by `verify`:
  - a function has at most one parallel loop; it is outermost, runs from 0, and its iterations are independent: devices
    run any sub-range of it (CPU: `begin..end` of the ABI; OpenCL: one work-item per iteration). None reads what another
    one stores; two may store to the same place if it is the same value;
  - a group loop stands in place of the parallel one where iterations are work-groups: its body may allocate local
    buffers and holds an item loop, 0..W with constant W, whose iterations are the work-items of one group. Work-items
    share local buffers, everything else allocated in an item loop is one per work-item. Bounds and conditions inside
    it must not depend on the work-item, so that all come to each `barrier`, which stands nowhere else. From one barrier
    to the next no work-item touches what another one stores;
  - a vector loop runs 0..W with constant W; its variable is the lane. Statements below it run for all lanes in
    lockstep. It may hold serial and unroll loops and ifs, whose bounds and conditions must not depend on the lane, but
    no other vector loop. A register buffer or let made inside it is one per lane; a store to a buffer allocated outside
    it at an offset independent of the lane must store a value independent of the lane (e.g. `across(...)`);
  - register buffers have a constant size, and offsets that only variables of unrolled loops are in: they become SSA
    values;
  - a call stands outside vector loops and means the body of its microkernel's meaning, whose buffers start at the
    given offsets; dims lie within their bounds. It names no register buffers, but in an item loop: there they stand
    for buffers of constant size;
  - parameters do not overlap each other; `in` buffers are never stored to;
  - offsets are flat element offsets; every index variable is bound by an enclosing loop or a dim parameter.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from minigrad.codegen.microkernels.microkernel import Microkernel
from minigrad.dtype import DType
from minigrad.expr import Index, Var
from minigrad.record import record
from minigrad.value import Value


@record
class BufferParam:
    """A buffer argument of `size` elements; mode 'in', 'out' or 'inout'. They are those from element `start`, a dim, on
    of the buffer that is passed: offsets count from there."""

    name: str
    dtype: DType
    size: Index
    mode: str = "in"
    start: Var | None = None


@record
class ScalarParam:
    name: str
    dtype: DType


@record
class Loop:
    """`var` runs from start to stop, exclusive. kind: 'serial', 'parallel', 'group', 'item', 'vector', 'unroll'."""

    var: Var
    start: Index
    stop: Index
    kind: str
    body: tuple[Stmt, ...]


@record
class Alloc:
    """Memory of `size` elements, scope 'register' (SSA values), 'scratch' (private memory of a worker) or
    'local' (shared by the work-items of a work-group)."""

    name: str
    dtype: DType
    size: int
    scope: str


@record
class Let:
    """Names a value for the rest of the block; read as local(name)."""

    name: str
    value: Value


@record
class Store:
    buffer: str
    offset: Index
    value: Value
    conditions: tuple[Index, ...] = ()


@record
class If:
    """Runs `then` where every condition is >= 0, else `otherwise`."""

    conditions: tuple[Index, ...]
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@record
class Call:
    """Runs a microkernel. Buffers as (name, offset), scalars and dims are in the order of the meaning's parameters."""

    kernel: Microkernel
    buffers: tuple[tuple[str, Index], ...]
    scalars: tuple[Value, ...] = ()
    dims: tuple[Index, ...] = ()


@record
class Barrier:
    """Joins the work-items of one work-group. (A device-wide barrier is between stages, and no statement.)"""


@record
class Prefetch:
    """Says that memory around an element will be read soon. No effect; the offset may lie outside the buffer.

    `far`: not so soon that the first-level cache should have it.
    """

    buffer: str
    offset: Index
    far: bool = False


Stmt = Loop | Alloc | Let | Store | If | Call | Barrier | Prefetch


@dataclass(frozen=True, slots=True)
class Function:
    """One stage: arguments in order are `buffers`, then `scalars`, then `dims`; for its iterations see `extent_of`."""

    name: str
    buffers: tuple[BufferParam, ...]
    scalars: tuple[ScalarParam, ...]
    dims: tuple[Var, ...]
    body: tuple[Stmt, ...]
    _hash: int | None = field(default=None, init=False, compare=False, repr=False)

    def __hash__(self) -> int:
        """The hash, computed once: the caches of programs ask again and again."""
        found = self._hash
        if found is None:
            found = hash((self.name, self.buffers, self.scalars, self.dims, self.body))
            object.__setattr__(self, "_hash", found)
        return found


def extent_of(function: Function) -> Index:
    """The number of iterations of the parallel or group loop, 1 if there is none."""
    for s in function.body:
        if isinstance(s, Loop) and s.kind in ("parallel", "group"):
            return s.stop
    return 1


def group_size(function: Function) -> int:
    """The number of work-items of a work-group; 0 for a function without work-groups."""
    for s in function.body:
        if isinstance(s, Loop) and s.kind == "group":
            return max((int(i.stop) for i in s.body if isinstance(i, Loop) and i.kind == "item"), default=1)
    return 0
