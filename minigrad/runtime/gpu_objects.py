"""Registers, spills, local and private memory of a kernel, read from the object file that a GPU's compiler made of it.

AMD's objects carry a note in msgpack (LLVM's AMDGPU usage guide, code object metadata). From it and the processor's
register file follows how many waves a SIMD holds at once. Of NVIDIA, ptxas says what a kernel takes (inspected.py), and
the CUDA programming guide what a multiprocessor has, by compute capability.
"""
from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from minigrad.errors import DeviceError

NOTE_SECTION, METADATA_NOTE = 7, 32


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that one kernel takes: vector and scalar registers per work-item and spills of them, `local` bytes
    per work-group, `private` bytes per work-item, at most `group` work-items to a work-group, `wave` lanes to a
    wave."""

    vgprs: int
    sgprs: int
    spills: int
    local: int
    private: int
    group: int
    wave: int


@dataclass(frozen=True, slots=True)
class Processor:
    """A GPU processor: `units` compute units on a common card with it, of two SIMDs each; per SIMD, `registers` vector
    registers of a wave, handed out `granule` at a time, and room for `waves`. Two compute units share their local
    memory."""

    units: int
    registers: int
    granule: int
    waves: int


RDNA1, RDNA2, RDNA3 = (1024, 8, 20), (1024, 16, 16), (1536, 24, 16)
AMD = {
    "gfx1010": Processor(40, *RDNA1), "gfx1012": Processor(22, *RDNA1),
    "gfx1030": Processor(72, *RDNA2), "gfx1031": Processor(40, *RDNA2), "gfx1032": Processor(32, *RDNA2),
    "gfx1034": Processor(16, *RDNA2), "gfx1035": Processor(12, *RDNA2), "gfx1036": Processor(2, *RDNA2),
    "gfx1100": Processor(96, *RDNA3), "gfx1101": Processor(60, *RDNA3), "gfx1102": Processor(32, *RDNA2),
    "gfx1103": Processor(12, *RDNA2), "gfx1200": Processor(32, *RDNA3), "gfx1201": Processor(64, *RDNA3),
}
SIMDS, LOCAL_MEMORY, LOCAL_GRANULE, MOST_GROUPS = 4, 128 << 10, 1024, 32
"""Of two compute units together: SIMDs, bytes of local memory, the steps it is handed out in, the most work-groups of
several waves."""


def max_waves(used: Resources, processor: Processor) -> int:
    """The number of waves of the kernel that a SIMD holds at once: vector registers, local memory and whole work-groups
    decide."""
    registers = max(_up(used.vgprs, processor.granule), processor.granule)
    waves = min(processor.waves, processor.registers // registers)
    in_group = -(-used.group // used.wave)
    groups = waves * SIMDS // in_group
    if used.local:
        groups = min(groups, LOCAL_MEMORY // _up(used.local, LOCAL_GRANULE))
    if in_group > 1:
        groups = min(groups, MOST_GROUPS)
    return -(-groups * in_group // SIMDS)


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """The limits of a multiprocessor of NVIDIA: `warps` and work-groups (`groups`) that it holds at once, `local` bytes
    of memory, handed out `granule` at a time, of which each work-group takes `reserved` besides its own."""

    warps: int
    groups: int
    local: int
    reserved: int = 1024
    granule: int = 128


NVIDIA = {
    "70": Multiprocessor(64, 32, 96 << 10, 0, 256), "72": Multiprocessor(64, 32, 96 << 10, 0, 256),
    "75": Multiprocessor(32, 16, 64 << 10, 0, 256), "80": Multiprocessor(64, 32, 164 << 10),
    "86": Multiprocessor(48, 16, 100 << 10), "87": Multiprocessor(48, 16, 164 << 10),
    "89": Multiprocessor(48, 24, 100 << 10), "90": Multiprocessor(64, 32, 228 << 10),
    "100": Multiprocessor(64, 32, 228 << 10), "103": Multiprocessor(64, 32, 228 << 10),
    "110": Multiprocessor(48, 24, 228 << 10), "120": Multiprocessor(48, 24, 100 << 10),
    "121": Multiprocessor(48, 24, 100 << 10),
}
"""By compute capability, without the point."""
PARTS, PART_REGISTERS, WARP_GRANULE = 4, 16 << 10, 256
"""Parts of a multiprocessor between which warps are divided, the registers of one, and the steps in which a warp gets
them."""


def max_warps(used: Resources, processor: Multiprocessor) -> int:
    """The number of warps of the kernel that a multiprocessor holds at once, of whole work-groups: warps, work-groups,
    registers and local memory decide. 0 if a work-group does not fit."""
    in_group = -(-used.group // used.wave)
    of_warp = _up(max(used.vgprs, 1) * used.wave, WARP_GRANULE)
    if of_warp * _up(in_group, PARTS) > PART_REGISTERS * PARTS:
        return 0
    warps = min(processor.warps, PART_REGISTERS // of_warp * PARTS)
    groups = min(warps // in_group, processor.groups)
    local = _up(used.local + processor.reserved, processor.granule)  # per group
    return (min(groups, processor.local // local) if local else groups) * in_group


def _up(n: int, step: int) -> int:
    return -(-n // step) * step


def amd_resources(code: bytes) -> dict[str, Resources]:
    """The resources of each kernel of an AMD object file, by name. Raises DeviceError for anything else."""
    notes = [data for kind, data in _notes(code) if kind == METADATA_NOTE]
    if not notes:
        raise DeviceError(f"[inspect] expected an object with AMD's metadata note, got {len(code)} bytes without one")
    metadata, _ = unpack(notes[0], 0)
    return {k[".name"]: Resources(k[".vgpr_count"], k[".sgpr_count"],
                                  k.get(".vgpr_spill_count", 0) + k.get(".sgpr_spill_count", 0),
                                  k[".group_segment_fixed_size"], k[".private_segment_fixed_size"],
                                  k[".max_flat_workgroup_size"], k[".wavefront_size"])
            for k in metadata["amdhsa.kernels"]}


def _notes(code: bytes) -> list[tuple[int, bytes]]:
    """(type, data) of every note in the note sections of a 64-bit little-endian ELF file."""
    if code[:6] != b"\x7fELF\x02\x01":
        raise DeviceError("[inspect] expected a 64-bit little-endian ELF file")
    table, size, count = struct.unpack_from("<Q", code, 0x28)[0], *struct.unpack_from("<HH", code, 0x3A)
    found = []
    for k in range(count):
        kind, = struct.unpack_from("<I", code, table + k * size + 4)
        if kind != NOTE_SECTION:
            continue
        start, length = struct.unpack_from("<QQ", code, table + k * size + 0x18)
        at = start
        while at < start + length:
            name, data, note = struct.unpack_from("<III", code, at)
            begin = at + 12 + _up(name, 4)
            found.append((note, code[begin:begin + data]))
            at = begin + _up(data, 4)
    return found


def unpack(data: bytes, at: int) -> tuple[Any, int]:
    """One msgpack value at a position, and the position after it: maps, arrays, strings, integers, booleans, nil."""
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind < 0x90:
        return _map(data, at, kind & 15)
    if kind < 0xA0:
        return _array(data, at, kind & 15)
    if kind < 0xC0:
        return _text(data, at, kind & 31)
    if kind in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[kind], at
    if kind >= 0xE0:
        return kind - 256, at
    numbers = {0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q", 0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}
    counts = {0xD9: ("B", _text), 0xDA: ("H", _text), 0xDB: ("I", _text), 0xDC: ("H", _array), 0xDD: ("I", _array),
              0xDE: ("H", _map), 0xDF: ("I", _map)}
    if kind in numbers:
        value, = struct.unpack_from(">" + numbers[kind], data, at)
        return value, at + struct.calcsize(numbers[kind])
    if kind in counts:
        form, read = counts[kind]
        count, = struct.unpack_from(">" + form, data, at)
        return read(data, at + struct.calcsize(form), count)
    raise DeviceError(f"[inspect] expected msgpack, got a value of type {kind:#x}")


def _text(data: bytes, at: int, count: int) -> tuple[str, int]:
    return data[at:at + count].decode(), at + count


def _array(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(count):
        value, at = unpack(data, at)
        found.append(value)
    return found, at


def _map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    flat, at = _array(data, at, 2 * count)
    return dict(zip(flat[::2], flat[1::2], strict=True)), at
