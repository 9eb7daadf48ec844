"""What objects take from outside, in the formats of Linux, macOS and Windows: LLVM writes them all here."""
from __future__ import annotations

import pytest
from support.machine_code import object_code

from minigrad.errors import InternalError
from minigrad.runtime.object_symbols import LIBRARY_SYMBOLS, foreign_symbols, undefined_symbols

TRIPLES = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "s390x-unknown-linux-gnu", "x86_64-apple-darwin23",
           "arm64-apple-darwin23", "x86_64-pc-windows-msvc", "aarch64-pc-windows-msvc")
LIBRARY = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
@inside = internal global [4 x float] zeroinitializer
@defined_here = global float 0.0

define void @uses_the_library(ptr %p, ptr %q, i64 %n) {
  %large = alloca [20000 x i8]
  call void @llvm.memcpy.p0.p0.i64(ptr %p, ptr %q, i64 %n, i1 0)
  call void @llvm.memcpy.p0.p0.i64(ptr %large, ptr %q, i64 %n, i1 0)
  call void @llvm.memmove.p0.p0.i64(ptr %q, ptr %large, i64 %n, i1 0)
  call void @llvm.memset.p0.i64(ptr %p, i8 0, i64 %n, i1 0)
  %x = load float, ptr @inside
  %y = fadd float %x, 1.0
  store float %y, ptr %p
  ret void
}
"""
CALLS = """
declare float @expf(float)
declare void @a_name_that_is_longer_than_eight_letters(ptr)
define void @calls(ptr %p) {
  %x = load float, ptr %p
  %y = call float @expf(float %x)
  store float %y, ptr %p
  call void @a_name_that_is_longer_than_eight_letters(ptr %p)
  ret void
}
"""


@pytest.mark.parametrize("triple", TRIPLES)
def test_what_an_object_calls_is_found(triple: str) -> None:
    assert not foreign_symbols(object_code(LIBRARY, triple))
    assert undefined_symbols(object_code(LIBRARY, triple)) <= LIBRARY_SYMBOLS
    for text in (CALLS, LIBRARY + CALLS):
        assert foreign_symbols(object_code(text, triple)) == {"expf", "a_name_that_is_longer_than_eight_letters"}


@pytest.mark.parametrize("code", [b"", b"\x7fELF\x01\x01\x01\0", b"\xce\xfa\xed\xfe", b"MZ\x90\0"])
def test_another_format_is_refused(code: bytes) -> None:
    with pytest.raises(InternalError, match="expected an object in ELF, COFF or Mach-O, got one that begins with b'"):
        undefined_symbols(code)
