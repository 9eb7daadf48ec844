"""Gradient + AttentionGradientPlan -> loop IR. The nest is the one in attention_gradient.py."""
from __future__ import annotations

from collections.abc import Callable

from minigrad.codegen.ir.launch import Names, ceil_div, function_of, spread
from minigrad.codegen.ir.nodes import Alloc, Function, Loop, Stmt, Store
from minigrad.codegen.kernel.access import extent
from minigrad.codegen.kernel.monoid import MONOIDS, accumulate
from minigrad.codegen.kernel.nodes import Kernel, Nest
from minigrad.codegen.kernel.value_walk import Rewriter
from minigrad.codegen.patterns.recognise_attention import DOT, last_key
from minigrad.codegen.plan.other_plans import AttentionGradientPlan
from minigrad.codegen.policy.attention_gradient import recognise
from minigrad.errors import InternalError
from minigrad.expr import Index, Var, bounds, emin, subs
from minigrad.value import Value, binary, const, guard, load, unary

Factor = Callable[[Index, Index], Value]


def build_attention_gradient(kernel: Kernel, nest: Nest, plan: AttentionGradientPlan, name: str) -> Function:
    """The loop nest of the gradients of an attention."""
    return GradientBuilder(kernel, nest, plan).function(name)


def whole_tiles(n: int, tile: int) -> int:
    """`n` rounded up."""
    return -(-n // tile) * tile


class GradientBuilder(Names):
    def __init__(self, kernel: Kernel, nest: Nest, plan: AttentionGradientPlan):
        found = recognise(nest)
        if found is None:
            raise InternalError(f"[build] expected the gradient of an attention for {plan}, got {kernel.name}")
        self.kernel, self.parts, self.plan = kernel, found, plan
        self.dtype = found.q.dtype
        self.lanes = plan.vectors * plan.width
        self.depth, self.column = extent(found.depth), extent(found.column)
        self.wide = {v: whole_tiles(extent(v), self.lanes) for v in (found.depth, found.column)}
        self.results = dict(found.results)
        self.lane = Var("lane", 0, plan.width - 1)
        self.at: dict[Var, Index] = {}
        self.origin: Index = 0
        super().__init__()

    def function(self, name: str) -> Function:
        batch = self.parts.batch
        p, total, places = spread([v.hi + 1 for v in batch])
        self.at.update(zip(batch, places, strict=True))
        return function_of(self.kernel, name, Loop(p, 0, total, "parallel", tuple(self.head())))

    # ---- one place in the batch ----

    def head(self) -> list[Stmt]:
        parts, plan = self.parts, self.plan
        keys, wide = whole_tiles(extent(parts.key), plan.rows), self.wide
        sizes = {"q_transposed": self.depth * plan.block, "q_rows": plan.block * wide[parts.depth],
                 "g_transposed": self.column * plan.block, "g_rows": plan.block * wide[parts.column],
                 "weights": plan.keys * plan.block, "changes": plan.keys * plan.block,
                 "q_sum": whole_tiles(self.depth, plan.rows) * plan.block, "k_sum": keys * wide[parts.depth],
                 "v_sum": keys * wide[parts.column]}
        used = {"q_transposed", "g_rows", "weights", *(f"{of}_sum" for of in self.results)}
        used |= {"g_transposed", "changes"} if parts.v is not None else set()
        used |= {"q_rows"} if "k" in self.results else set()
        memory: list[Stmt] = [Alloc(n, self.dtype, size, "scratch") for n, size in sizes.items() if n in used]
        clear = [self.clear(f"{of}_sum", sizes[f"{of}_sum"]) for of in "kv" if of in self.results]
        block = self.counted("rows", ceil_div(extent(parts.row), plan.block))
        self.origin = block * plan.block
        rows = Loop(block, 0, block.hi + 1, "serial", tuple(self.rows(sizes["q_sum"])))
        return [*memory, *clear, rows, *(self.finish(of) for of in "kv" if of in self.results)]

    def clear(self, memory: str, size: int) -> Loop:
        x = self.counted("x", size // self.plan.width)
        store = Store(memory, x * self.plan.width + self.lane, const(0, self.dtype))
        return Loop(x, 0, x.hi + 1, "serial", (Loop(self.lane, 0, self.plan.width, "vector", (store,)),))

    def finish(self, of: str) -> Loop:
        """Stores the gradient of k or v."""
        parts, result = self.parts, self.results[of]
        column = parts.depth if of == "k" else parts.column
        j = self.counted("j", extent(parts.key))

        def body(c: Index) -> list[Stmt]:
            value = load(f"{of}_sum", (j * self.wide[column] + c,), self.dtype)
            here = Rewriter({**self.at, parts.key: j, column: c}, locals_={result.name: value})
            inside = () if self.wide[column] == extent(column) else (column.hi - c,)
            return [Store(result.store.param, here.index(result.store.indices[0]), here.value(result.store.value),
                          inside)]

        return Loop(j, 0, j.hi + 1, "serial", (self.across(self.wide[column], body),))

    # ---- one block of rows ----

    def rows(self, size: int) -> list[Stmt]:
        parts, plan = self.parts, self.plan
        stop = last_key(parts, self.at, self.origin, plan.block) + 1
        b = self.counted("keys", ceil_div(bounds(stop)[1], plan.keys))
        first = b * plan.keys
        keys = self.keys(first, emin(stop - first, plan.keys))
        before = [self.transpose("q_transposed", parts.depth, parts.q), self.copy("g_rows", parts.column, parts.g)]
        if parts.v is not None:
            before.append(self.transpose("g_transposed", parts.column, parts.g))
        if "k" in self.results:
            before.append(self.copy("q_rows", parts.depth, parts.q))
        of_q = "q" in self.results
        return [*before, *([self.clear("q_sum", size)] if of_q else ()),
                Loop(b, 0, ceil_div(stop, plan.keys), "serial", tuple(keys)), *([self.finish_q()] if of_q else ())]

    def across(self, length: int, body: Callable[[Index], list[Stmt]]) -> Loop:
        """body(position) for a whole number of vectors."""
        v = self.counted("v", length // self.plan.width)
        each = Loop(v, 0, v.hi + 1, "serial", tuple(body(v * self.plan.width + self.lane)))
        return Loop(self.lane, 0, self.plan.width, "vector", (each,))

    def row(self, position: Index) -> tuple[Index, tuple[Index, ...]]:
        """(the row at a position of the block, or the last one; what is not negative where there is one)."""
        length, row = extent(self.parts.row), self.origin + position
        return (row, ()) if length % self.plan.block == 0 else (emin(row, length - 1), (length - 1 - row,))

    def transpose(self, memory: str, column: Var, value: Value) -> Loop:
        """memory[column][row] = value; rows beyond the last one repeat it."""
        c = self.counted("c", extent(column))

        def body(position: Index) -> list[Stmt]:
            at = {**self.at, self.parts.row: self.row(position)[0], column: c}
            return [Store(memory, c * self.plan.block + position, Rewriter(at).value(value))]

        return Loop(c, 0, c.hi + 1, "serial", (self.across(self.plan.block, body),))

    def copy(self, memory: str, column: Var, value: Value) -> Loop:
        """memory[row][column] = value; 0 for rows and columns that are none."""
        position, zero = self.counted("i", self.plan.block), const(0, self.dtype)
        row, inside = self.row(position)
        wide = self.wide[column]

        def body(c: Index) -> list[Stmt]:
            whole = wide == extent(column)
            at = {**self.at, self.parts.row: row, column: c if whole else emin(c, column.hi)}
            conditions = inside if whole else (*inside, column.hi - c)
            return [Store(memory, position * wide + c, guard(Rewriter(at).value(value), zero, conditions))]

        return Loop(position, 0, position.hi + 1, "serial", (self.across(wide, body),))

    def finish_q(self) -> Loop:
        """Stores the gradient of q for the block's rows."""
        parts, result = self.parts, self.results["q"]
        c = self.counted("c", self.depth)

        def body(position: Index) -> list[Stmt]:
            value = load("q_sum", (c * self.plan.block + position,), self.dtype)
            here = Rewriter({**self.at, parts.row: self.origin + position, parts.depth: c},
                            locals_={result.name: value})
            return [Store(result.store.param, here.index(result.store.indices[0]), here.value(result.store.value),
                          self.row(position)[1])]

        return Loop(c, 0, c.hi + 1, "serial", (self.across(self.plan.block, body),))

    # ---- a block of rows and a block of keys ----

    def keys(self, first: Index, count: Index) -> list[Stmt]:
        parts, block = self.parts, self.plan.block
        wide = {"k": self.wide[parts.depth], "v": self.wide[parts.column]}
        of_k = self.of_key(parts.k, parts.depth, first)
        found: list[Stmt] = [self.tile(count, self.depth, of_k, "q_transposed", "weights", block)]
        if parts.v is not None:
            of_v = self.of_key(parts.v, parts.column, first)
            found.append(self.tile(count, self.column, of_v, "g_transposed", "changes", block))
        found.append(self.weights(first, count))
        for of, scores, rows in (("v", "weights", "g_rows"), ("k", "changes", "q_rows")):
            if of in self.results:
                found.append(self.tile(count, block, self.of_score(scores), rows, f"{of}_sum", wide[of], first))
        if "q" in self.results:
            found.append(self.tile(self.depth, count, lambda x, t: of_k(t, x), "changes", "q_sum", block, 0))
        return found

    def of_key(self, value: Value, column: Var, first: Index) -> Factor:
        """An element of k or v; keys and columns beyond the last one repeat it."""
        def element(key: Index, c: Index) -> Value:
            at = {**self.at, self.parts.key: emin(first + key, self.parts.key.hi), column: emin(c, column.hi)}
            return Rewriter(at).value(value)

        return element

    def of_score(self, memory: str) -> Factor:
        return lambda key, row: load(memory, (key * self.plan.block + row,), self.dtype)

    def tile(self, count: Index, terms: Index, factor: Factor, memory: str, into: str, pitch: int,
             first: Index | None = None) -> Loop:
        """into[x][c] = sum over t < terms of factor(x, t) * memory[t][c], for x < count and c < pitch. With `first` it
        is added to row first + x."""
        plan = self.plan
        x, c = self.counted("x", ceil_div(count, plan.rows)), self.counted("c", pitch // self.lanes)
        t, u, v = self.counted("t", terms), self.counted("u", plan.rows), self.counted("v", plan.vectors)
        acc = f"acc_{self.count}"
        column, slot = c * self.lanes + v * plan.width + self.lane, u * plan.vectors + v
        place = x * plan.rows + u
        target = ((0 if first is None else first) + place) * pitch + column
        old = load(acc, (slot,), self.dtype)
        total = old if first is None else binary("add", load(into, (target,), self.dtype), old)
        term = binary("mul", factor(place, t), load(memory, (t * pitch + column,), self.dtype))

        def each(s: Stmt) -> Loop:
            return Loop(u, 0, plan.rows, "unroll", (Loop(v, 0, plan.vectors, "unroll", (s,)),))

        body = (Alloc(acc, self.dtype, plan.rows * plan.vectors, "register"),
                each(Store(acc, slot, const(0, self.dtype))),
                Loop(t, 0, terms, "serial", (each(Store(acc, slot, accumulate(MONOIDS["sum"], old, term))),)),
                each(Store(into, target, total)))
        vector = Loop(self.lane, 0, plan.width, "vector", body)
        return Loop(c, 0, c.hi + 1, "serial", (Loop(x, 0, ceil_div(count, plan.rows), "serial", (vector,)),))

    def weights(self, first: Index, count: Index) -> Loop:
        """weights become exp(score - sums), changes the gradients of the scores; 0 where there is no such pair."""
        parts, plan = self.parts, self.plan
        zero = const(0, self.dtype)
        c, v = self.counted("c", plan.block // self.lanes), self.counted("v", plan.vectors)
        j = self.counted("j", plan.keys)
        position = c * self.lanes + v * plan.width + self.lane
        row, inside = self.row(position)
        if extent(parts.key) % plan.rows:
            inside = (*inside, parts.key.hi - first - j)
        at = {**self.at, parts.row: row, parts.key: emin(first + j, parts.key.hi)}
        inside = (*inside, *(subs(e, at) for e in parts.conditions))
        here = (j * plan.block + position,)
        score = Rewriter(at, locals_={DOT: load("weights", here, self.dtype)}).value(parts.score)
        plain = Rewriter(at)
        weight = unary("exp", binary("sub", score, plain.value(parts.sums)))
        body: list[Stmt] = [Store("weights", here[0], guard(weight, zero, inside))]
        if parts.less is not None:
            change = binary("sub", load("changes", here, self.dtype), plain.value(parts.less))
            change = binary("mul", load("weights", here, self.dtype), change)
            body.append(Store("changes", here[0], guard(change, zero, inside)))
        each = Loop(v, 0, plan.vectors, "unroll", tuple(body))
        stop = ceil_div(count, plan.rows) * plan.rows
        vector = Loop(self.lane, 0, plan.width, "vector", (Loop(j, 0, stop, "serial", (each,)),))
        return Loop(c, 0, c.hi + 1, "serial", (vector,))
