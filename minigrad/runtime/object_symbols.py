"""Names that object files take from outside, in the three formats that LLVM writes for processors."""
from __future__ import annotations

import struct
from collections.abc import Iterator

from minigrad.errors import InternalError

LIBRARY_SYMBOLS = frozenset({"memcpy", "memmove", "memset", "bzero", "__bzero", "__chkstk", "_fltused"})
"""The symbols that the loader may resolve from the process: LLVM turns copies and fills into these by itself, the two
in the middle on macOS. On Windows it touches large stack frames page by page, and says of objects that they have
floats."""


def foreign_symbols(code: bytes) -> frozenset[str]:
    """Names that an object takes from outside and that no library of the process is known to have."""
    return undefined_symbols(code) - LIBRARY_SYMBOLS


def undefined_symbols(code: bytes) -> frozenset[str]:
    """Names that an object takes from outside: in ELF of 64 bits, COFF or Mach-O of 64 bits.

    Raises InternalError for another format: what it calls is unknown.
    """
    if code[:5] == b"\x7fELF\x02":
        return frozenset(_elf(code, "<" if code[5] == 1 else ">"))
    if code[:4] == b"\xcf\xfa\xed\xfe":
        return frozenset(_mach_o(code))
    if code[:2] in (b"\x64\x86", b"\x64\xaa"):  # its first field is the processor: x86-64 or ARM64
        return frozenset(_coff(code))
    raise InternalError(f"[load] expected an object in ELF, COFF or Mach-O, got one that begins with {code[:8]!r}")


def processor_of(code: bytes) -> bytes:
    """The number by which an object's format names the processor that it is for."""
    return code[18:20] if code[:4] == b"\x7fELF" else code[4:8] if code[:4] == b"\xcf\xfa\xed\xfe" else code[:2]


def _elf(code: bytes, order: str) -> Iterator[str]:
    section_table, = struct.unpack_from(f"{order}Q", code, 40)
    entry_size, count = struct.unpack_from(f"{order}HH", code, 58)
    sections = [struct.unpack_from(f"{order}IIQQQQIIQQ", code, section_table + i * entry_size) for i in range(count)]
    for _, kind, _, _, offset, size, link, _, _, symbol_size in sections:
        if kind != 2:  # SHT_SYMTAB
            continue
        for at in range(offset + symbol_size, offset + size, symbol_size):
            name, _, _, section = struct.unpack_from(f"{order}IBBH", code, at)
            if section == 0 and name:
                yield _string(code, sections[link][4] + name)


def _coff(code: bytes) -> Iterator[str]:
    table, count = struct.unpack_from("<II", code, 8)
    strings, k = table + 18 * count, 0
    while k < count:
        at = table + 18 * k
        zeros, name, value, section, _, storage, further = struct.unpack_from("<IIIhHBB", code, at)
        if section == 0 and value == 0 and storage == 2:  # IMAGE_SYM_CLASS_EXTERNAL
            yield _string(code, strings + name) if zeros == 0 else code[at:at + 8].rstrip(b"\0").decode()
        k += 1 + further


def _mach_o(code: bytes) -> Iterator[str]:
    """C's names, which have an underscore before them here."""
    commands, = struct.unpack_from("<I", code, 16)
    at = 32
    for _ in range(commands):
        command, size = struct.unpack_from("<II", code, at)
        if command == 2:  # LC_SYMTAB
            table, count, strings = struct.unpack_from("<III", code, at + 8)
            for k in range(count):
                name, kind, _, _, value = struct.unpack_from("<IBBHQ", code, table + 16 * k)
                if kind == 1 and value == 0:  # N_EXT alone: in no section
                    yield _string(code, strings + name).removeprefix("_")
        at += size


def _string(code: bytes, at: int) -> str:
    return code[at:code.index(b"\0", at)].decode()
