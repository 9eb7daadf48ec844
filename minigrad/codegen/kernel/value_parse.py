"""Reading of Values and indices from the text that `value_text.py` describes, and of indented blocks of lines."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from minigrad.codegen.kernel.monoid import MONOIDS
from minigrad.codegen.kernel.value_text import INFIX, UNARY_LEVEL
from minigrad.dtype import BY_SHORT, DType, bool_, float32, int32
from minigrad.errors import FormatError
from minigrad.expr import Index, Var, dim, emax, emin
from minigrad.value import BINARY, UNARY, Value, ValueIndex, binary, const, index, load, local, make, unary

_TOKEN = re.compile(
    r"\s*((?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|(?:inf|nan)\b)(?::(?:b8|bf16|[iuf]\d+)\b)?"
    r"|[A-Za-z_]\w*|\$\d+|\.\.|<<|>>|<=|>=|==|!=|//|[-+*/%&|^~<>=()\[\]{},:])")
_LITERAL = re.compile(r"\d|(?:inf|nan)(?![A-Za-z_0-9])")
_OPERATORS = {sign: (op, level) for op, (sign, level) in INFIX.items()}


@dataclass
class Scope:
    """The names that a line may use: index variables, values with a name, buffers, and `$` definitions."""

    variables: dict[str, Var] = field(default_factory=dict)
    locals_: dict[str, DType] = field(default_factory=dict)
    buffers: dict[str, DType] = field(default_factory=dict)
    named: dict[str, Value] = field(default_factory=dict)

    def inner(self) -> Scope:
        """A scope for an indented block: what it adds does not leave it."""
        return Scope(dict(self.variables), dict(self.locals_), dict(self.buffers), dict(self.named))


class Line:
    """A recursive-descent reader over the tokens of one line."""

    def __init__(self, text: str, number: int, scope: Scope, depth: int = 0):
        self.text, self.number, self.scope, self.depth, self.at = text, number, scope, depth, 0
        self.tokens: list[str] = []
        position, text = 0, text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.error(f"a token at {text[position:position + 10]!r}")
            self.tokens.append(match.group(1))
            position = match.end()
        self.tokens.append("")

    def error(self, expected: str) -> FormatError:
        got = repr(self.tokens[self.at]) if self.at < len(self.tokens) and self.tokens[self.at] else "the end"
        return FormatError(f"[parse] line {self.number}: expected {expected}, got {got} in {self.text.strip()!r}")

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def take(self) -> str:
        token = self.tokens[self.at]
        if not token:
            raise self.error("more")
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        if self.tokens[self.at] != token:
            return False
        self.at += 1
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.error(repr(token))

    def name(self) -> str:
        if not re.match(r"[A-Za-z_]", self.peek()):
            raise self.error("a name")
        return self.take()

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        if not self.peek().isdigit():
            raise self.error("an integer")
        return sign * int(self.take())

    def dtype(self) -> DType:
        if self.peek() not in BY_SHORT:
            raise self.error(f"one of {', '.join(BY_SHORT)}")
        return BY_SHORT[self.take()]

    def end(self) -> None:
        if self.peek():
            raise self.error("the end of the line")

    def one_of(self, choices: tuple[str, ...]) -> str:
        if self.peek() not in choices:
            raise self.error(f"one of {', '.join(choices)}")
        return self.take()

    def buffer(self) -> str:
        if self.peek() not in self.scope.buffers:
            raise self.error(f"a buffer ({', '.join(self.scope.buffers) or 'there are none'})")
        return self.take()

    # ---- headers ----

    def declare_dims(self) -> tuple[Var, ...]:
        """Every `name: index in lo..hi` of a header, which enter the scope: shapes before them may mention them."""
        start, found = self.at, list[Var]()
        for at in range(start, len(self.tokens) - 3):
            if self.tokens[at + 1:at + 4] == [":", "index", "in"]:
                self.at = at + 4
                found.append(Var(self.tokens[at], *self.range()))
                self.scope.variables[found[-1].name] = found[-1]
        self.at = start
        return tuple(found)

    def scalar(self) -> tuple[str, DType] | None:
        """A scalar argument `name: type`, which enters the scope; None after a dim, which is read already."""
        name = self.name()
        self.expect(":")
        if self.accept("index"):
            self.expect("in")
            self.range()
            return None
        self.scope.locals_[name] = self.dtype()
        return name, self.scope.locals_[name]

    # ---- indices ----

    def range(self) -> tuple[Index, Index]:
        """`index..index`"""
        start = self.index()
        self.expect("..")
        return start, self.index()

    def index(self) -> Index:
        total = -self._term() if self.accept("-") else self._term()
        while self.peek() in ("+", "-"):
            total = total + self._term() if self.take() == "+" else total - self._term()
        return total

    def _term(self) -> Index:
        e = self._factor()
        while self.peek() in ("*", "//", "%"):
            sign, right = self.take(), self._factor()
            if sign != "*" and right == 0:
                raise self.error("a divisor that is not 0")
            e = e * right if sign == "*" else e // right if sign == "//" else e % right
        return e

    def _factor(self) -> Index:
        token = self.peek()
        if token.isdigit():
            return int(self.take())
        if self.accept("-"):
            return -self._factor()
        if self.accept("("):
            e = self.index()
            self.expect(")")
            return e
        if self.accept("{"):
            value = self.value()
            self.expect("in")
            lo = self.integer()
            self.expect("..")
            atom = ValueIndex(value, lo, self.integer())
            self.expect("}")
            return atom
        if token in self.scope.variables:
            return self.scope.variables[self.take()]
        if token in ("min", "max", "dim"):
            self.take()
            args = self._arguments(self.index)
            if len(args) != (1 if token == "dim" else 2):
                raise self.error(f"the operands of {token}")
            return dim(*args) if token == "dim" else emin(*args) if token == "min" else emax(*args)
        raise self.error(f"an index over {', '.join(self.scope.variables) or 'no variables'}")

    def conditions(self) -> tuple[Index, ...]:
        """`e >= limit and ...`; printed texts have the limit 0."""
        found = []
        while True:
            e = self.index()
            self.expect(">=")
            found.append(e - self.index())
            if not self.accept("and"):
                return tuple(found)

    def domain(self) -> tuple[Var, ...]:
        """`v<extent, ...`: variables from 0. They enter the scope."""
        found = []
        while True:
            name = self.name()
            self.expect("<")
            found.append(Var(name, 0, self.index() - 1))
            if not self.accept(","):
                break
        for v in found:
            self.scope.variables[v.name] = v
        return tuple(found)

    # ---- values ----

    def definition(self) -> None:
        """`$n [for v<extent, ...] = value`, which enters the scope."""
        name, outer = self.take(), dict(self.scope.variables)
        if self.accept("for"):
            self.domain()
        self.expect("=")
        self.scope.named[name] = self.value()
        self.scope.variables = outer
        self.end()

    def value(self, least: int = 0) -> Value:
        x = self._unary()
        while True:
            found = _OPERATORS.get(self.peek())
            if found is None or found[1] < least:
                return x
            op, level = found
            self.take()
            y = self.value(level + 1)
            if x.dtype is not y.dtype:
                raise self.error(f"equal types on both sides of {op} (got {x.dtype.short} and {y.dtype.short})")
            x = binary(op, x, y)

    def _unary(self) -> Value:
        if self.peek() == "-":
            self.take()
            return self._literal(-1) if _LITERAL.match(self.peek()) else unary("neg", self.value(UNARY_LEVEL))
        if self.accept("~"):
            return unary("not", self.value(UNARY_LEVEL))
        return self._primary()

    def _literal(self, sign: int) -> Value:
        text, _, suffix = self.take().partition(":")
        is_int = text.isdigit()
        dtype = BY_SHORT.get(suffix, int32 if is_int else float32)
        if suffix and suffix not in BY_SHORT:
            raise self.error(f"one of {', '.join(BY_SHORT)}")
        return const(sign * (int(text) if is_int else float(text)), dtype)

    def _primary(self) -> Value:
        token, scope = self.peek(), self.scope
        if _LITERAL.match(token):
            return self._literal(1)
        if self.accept("("):
            return self._parenthesis()
        if token in scope.named:
            return scope.named[self.take()]
        if token in ("true", "false"):
            return const(self.take() == "true", bool_)
        following = self.peek(1)
        if following == "[":
            name = self.buffer()
            return load(name, self.indices(), scope.buffers[name])
        if following == "(":
            return self._call(self.take())
        if token in scope.locals_:
            return local(self.take(), scope.locals_[token])
        raise self.error("a value")

    def indices(self) -> tuple[Index, ...]:
        """`[index, ...]`"""
        self.expect("[")
        found = [] if self.peek() == "]" else [self.index()]
        while found and self.accept(","):
            found.append(self.index())
        self.expect("]")
        return tuple(found)

    def _parenthesis(self) -> Value:
        inside = self.value()
        if not self.accept("else"):
            self.expect(")")
            return inside
        otherwise = self.value()
        self.expect("if")
        conditions = self.conditions()
        self.expect(")")
        return make("guard", inside.dtype, (inside, otherwise), conditions)

    def _arguments(self, one: Callable) -> list:
        self.expect("(")
        found = [one()]
        while self.accept(","):
            found.append(one())
        self.expect(")")
        return found

    def _call(self, op: str) -> Value:
        if op in MONOIDS and self.peek(2) == "<" and self.peek() == "(":
            return self._reduce(op)
        if op in BY_SHORT:
            return make("cast", BY_SHORT[op], tuple(self._arguments(self.value)))
        if op == "index":
            return self._index()
        if op in ("bitcast", "across"):
            self.expect("(")
            monoid = self.name() if op == "across" else None
            if monoid is not None:
                if monoid not in MONOIDS:
                    raise self.error(f"one of {', '.join(MONOIDS)}")
                self.expect(",")
            x = self.value()
            if op == "bitcast":
                self.expect(",")
            found = make(op, x.dtype if op == "across" else self.dtype(), (x,), monoid)
            self.expect(")")
            return found
        expected = 3 if op in ("where", "fma") else 2 if op in BINARY else 1 if op in UNARY else 0
        if not expected:
            raise self.error(f"a known operation before '(', not {op!r}")
        args = tuple(self._arguments(self.value))
        if len(args) != expected:
            raise self.error(f"{expected} operands of {op}")
        if expected == 2:
            return binary(op, *args)
        return make(op, args[1 if op == "where" else 0].dtype, args)

    def _index(self) -> Value:
        self.expect("(")
        e = self.index()
        dtype = self.dtype() if self.accept(",") else int32
        self.expect(")")
        return index(e, dtype)

    def _reduce(self, monoid: str) -> Value:
        outer = dict(self.scope.variables)
        self.expect("(")
        over = self.domain()
        self.expect(":")
        body = self.value()
        self.expect(")")
        self.scope.variables = outer
        return make("reduce", body.dtype, (body,), (monoid, over))


class Lines:
    """The lines of a text with their indentation; blank lines and `#` comments are skipped."""

    def __init__(self, text: str):
        self.rows = [(len(row) - len(row.lstrip()), row.strip(), number)
                     for number, row in enumerate(text.splitlines(), 1) if row.strip()[:1] not in ("", "#")]
        self.at = 0

    def next(self, scope: Scope) -> Line:
        """The next line. Raises FormatError when there is none."""
        if self.at == len(self.rows):
            raise FormatError("[parse] expected another line, got the end of the text")
        depth, text, number = self.rows[self.at]
        self.at += 1
        return Line(text, number, scope, depth)

    def accept(self, text: str, after: Line) -> bool:
        """Reads the next line, and returns True, where it is `text` at the indentation of the line `after`."""
        if self.at < len(self.rows) and self.rows[self.at][:2] == (after.depth, text):
            self.at += 1
            return True
        return False

    def end(self, scope: Scope) -> None:
        """Raises FormatError if lines are left."""
        if self.at < len(self.rows):
            raise self.next(scope).error("the end of the text")

    def block(self, scope: Scope) -> Iterator[Line]:
        """The lines of a block indented deeper than the line before; the caller reads an inner block with a call of its
        own.

        Raises FormatError when the block is empty or a line's indentation fits no block.
        """
        outer = self.rows[self.at - 1]
        if self.at == len(self.rows) or self.rows[self.at][0] <= outer[0]:
            raise FormatError(f"[parse] line {outer[2]}: expected an indented block after {outer[1]!r}")
        depth = self.rows[self.at][0]
        while self.at < len(self.rows) and self.rows[self.at][0] >= depth:
            if self.rows[self.at][0] > depth:
                row = self.rows[self.at]
                raise FormatError(f"[parse] line {row[2]}: expected an indentation of {depth}, got {row[0]}")
            yield self.next(scope)
