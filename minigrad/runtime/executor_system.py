"""The part of the native executor that asks the operating system: how workers sleep, wake, and where they run.

`@@` names are places in the pool's state, and `executor_ir` puts them in.
"""
from __future__ import annotations


def has_futex(triple: str) -> bool:
    """True where idle workers can sleep in the kernel and be woken."""
    return "linux" in triple and triple.split("-")[0] in _SYSTEM_CALLS


def emit_system(triple: str) -> str:
    """IR of `wait`, `wake`, `enlist` (a worker says which thread it is) and `part` for a target triple."""
    text = _LINUX if has_futex(triple) else _NANOSLEEP
    for name, number in _SYSTEM_CALLS.get(triple.split("-")[0], {}).items():
        text = text.replace(name, str(number))
    return text


_GENERIC = {"%FUTEX": 98, "%GET_THREAD": 178, "%GET_PROCESSOR": 168, "%SET_AFFINITY": 122, "%GET_AFFINITY": 123}
_SYSTEM_CALLS = {
    "x86_64": {"%FUTEX": 202, "%GET_THREAD": 186, "%GET_PROCESSOR": 309, "%SET_AFFINITY": 203, "%GET_AFFINITY": 204},
    "aarch64": _GENERIC, "riscv64": _GENERIC,
}

# FUTEX_WAIT_PRIVATE is 128, FUTEX_WAKE_PRIVATE 129.
# part: keeps the workers off the processor that the caller is on. Where others have something to do too, Linux wakes a
# thread beside the one that wakes it, and leaves it there: workers that sleep often would always wait for the caller.
# They may be on all other processors that the caller may be on, if there are any.
_LINUX = """
define internal void @enlist(ptr %state, i64 %me) {
  %system_p = getelementptr i8, ptr %state, i64 @@SYSTEM
  %syscall = load ptr, ptr %system_p
  %thread = call i64 (i64, ...) %syscall(i64 %GET_THREAD)
  %my_offset = shl i64 %me, @@WORKER_SHIFT
  %workers = getelementptr i8, ptr %state, i64 @@WORKERS
  %mine = getelementptr i8, ptr %workers, i64 %my_offset
  %thread_p = getelementptr i8, ptr %mine, i64 16
  store atomic i64 %thread, ptr %thread_p release, align 8
  ret void
}

define internal void @part(ptr %state, i64 %threads) {
entry:
  %set = alloca [@@MASK_BYTES x i8], align 8
  %here_p = alloca i32
  store i32 0, ptr %here_p
  %system_p = getelementptr i8, ptr %state, i64 @@SYSTEM
  %syscall = load ptr, ptr %system_p
  %e0 = call i64 (i64, ...) %syscall(i64 %GET_PROCESSOR, ptr %here_p, ptr null, ptr null)
  %here = load i32, ptr %here_p
  %number = add i32 %here, 1
  %apart_p = getelementptr i8, ptr %state, i64 @@APART
  %apart = load i32, ptr %apart_p
  %same = icmp eq i32 %apart, %number
  br i1 %same, label %out, label %look
look:
  store i32 %number, ptr %apart_p
  store [@@MASK_BYTES x i8] zeroinitializer, ptr %set
  %e1 = call i64 (i64, ...) %syscall(i64 %GET_AFFINITY, i32 0, i64 @@MASK_BYTES, ptr %set)
  %wide = zext i32 %here to i64
  %at = lshr i64 %wide, 3
  %known = icmp sgt i64 %e1, %at
  br i1 %known, label %remove, label %out
remove:
  %byte_p = getelementptr i8, ptr %set, i64 %at
  %byte = load i8, ptr %byte_p
  %low = and i32 %here, 7
  %bit = shl i32 1, %low
  %bit_byte = trunc i32 %bit to i8
  %others = xor i8 %bit_byte, -1
  %rest = and i8 %byte, %others
  store i8 %rest, ptr %byte_p
  br label %count
count:
  %i = phi i64 [ 0, %remove ], [ %i_next, %count ]
  %any = phi i64 [ 0, %remove ], [ %any_next, %count ]
  %word_p = getelementptr i8, ptr %set, i64 %i
  %word = load i64, ptr %word_p
  %any_next = or i64 %any, %word
  %i_next = add i64 %i, 8
  %more = icmp ult i64 %i_next, @@MASK_BYTES
  br i1 %more, label %count, label %judge
judge:
  %none = icmp eq i64 %any_next, 0
  br i1 %none, label %out, label %move
move:
  %t = phi i64 [ 1, %judge ], [ %t_next, %moved ]
  %left = icmp ult i64 %t, %threads
  br i1 %left, label %one, label %out
one:
  %offset = shl i64 %t, @@WORKER_SHIFT
  %workers = getelementptr i8, ptr %state, i64 @@WORKERS
  %worker = getelementptr i8, ptr %workers, i64 %offset
  %thread_p = getelementptr i8, ptr %worker, i64 16
  %thread = load atomic i64, ptr %thread_p acquire, align 8
  %there = icmp ne i64 %thread, 0
  br i1 %there, label %set_one, label %missing
missing:
  store i32 0, ptr %apart_p
  br label %moved
set_one:
  %e2 = call i64 (i64, ...) %syscall(i64 %SET_AFFINITY, i64 %thread, i64 @@MASK_BYTES, ptr %set)
  br label %moved
moved:
  %t_next = add i64 %t, 1
  br label %move
out:
  ret void
}

define internal void @wait(ptr %state, ptr %word, i32 %value) {
  %system_p = getelementptr i8, ptr %state, i64 @@SYSTEM
  %syscall = load ptr, ptr %system_p
  %r = call i64 (i64, ...) %syscall(i64 %FUTEX, ptr %word, i32 128, i32 %value, ptr null, ptr null, i32 0)
  ret void
}

define internal void @wake(ptr %state, ptr %word) {
  %system_p = getelementptr i8, ptr %state, i64 @@SYSTEM
  %syscall = load ptr, ptr %system_p
  %r = call i64 (i64, ...) %syscall(i64 %FUTEX, ptr %word, i32 129, i32 2147483647, ptr null, ptr null, i32 0)
  ret void
}
"""

_NANOSLEEP = """
define internal void @enlist(ptr %state, i64 %me) {
  ret void
}

define internal void @part(ptr %state, i64 %threads) {
  ret void
}

define internal void @wait(ptr %state, ptr %word, i32 %value) {
  %time = alloca { i64, i64 }
  %nanoseconds = getelementptr i64, ptr %time, i64 1
  store i64 0, ptr %time
  store i64 50000, ptr %nanoseconds
  %system_p = getelementptr i8, ptr %state, i64 @@SYSTEM
  %nanosleep = load ptr, ptr %system_p
  %r = call i32 %nanosleep(ptr %time, ptr null)
  ret void
}

define internal void @wake(ptr %state, ptr %word) {
  ret void
}
"""
