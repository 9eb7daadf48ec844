"""Small CPU programs written by hand, in LLVM IR, for the tests of the runtime."""
from minigrad.runtime.device import Program

_LOOP = """
define void @NAME(ptr noalias %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %a = load ptr, ptr %args
  %args1 = getelementptr i64, ptr %args, i64 1
  %args2 = getelementptr i64, ptr %args, i64 2
SETUP
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %ap = getelementptr i64, ptr %a, i64 %i
BODY
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


def _program(name: str, arguments: tuple[str, ...], body: str, setup: str = "", scratch: int = 0) -> Program:
    source = _LOOP.replace("NAME", name).replace("SETUP", setup).replace("BODY", body)
    return Program(name, "llvm", source, arguments, scratch)


def increment(name: str = "increment", step: int = 1) -> Program:
    """a[i] += step, 64-bit integers."""
    return _program(name, ("buffer:8",), f"""
  %old = load i64, ptr %ap
  %new = add i64 %old, {step}
  store i64 %new, ptr %ap""")


def reverse(name: str = "reverse") -> Program:
    """a[i] = b[n - 1 - i] + 1 for (a, b, n): every iteration reads what another one wrote in the launch before."""
    return _program(name, ("buffer:8", "buffer:8", "i64"), """
  %from = sub i64 %last, %i
  %bp = getelementptr i64, ptr %b, i64 %from
  %old = load i64, ptr %bp
  %new = add i64 %old, 1
  store i64 %new, ptr %ap""", """
  %b = load ptr, ptr %args1
  %n = load i64, ptr %args2
  %last = sub i64 %n, 1""")


def fill(kind: str, llvm_type: str) -> Program:
    """Stores the scalar argument of `kind`, as its lowest bits, at a[i], elements of 8 bytes."""
    return _program(f"fill_{kind}", ("buffer:8", kind), f"  store {llvm_type} %value, ptr %ap", f"""
  %value = load {llvm_type}, ptr %args1""")


def through_scratch() -> Program:
    """a[i] = a[i] + begin, by way of the worker's scratch memory: its first and its last word."""
    return _program("through_scratch", ("buffer:8",), """
  %old = load i64, ptr %ap
  store i64 %old, ptr %scratch
  store i64 %begin, ptr %far
  %x = load i64, ptr %scratch
  %y = load i64, ptr %far
  %new = add i64 %x, %y
  store i64 %new, ptr %ap""", "  %far = getelementptr i64, ptr %scratch, i64 12500", 100_008)
