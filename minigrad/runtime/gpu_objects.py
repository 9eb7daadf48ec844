"""Registers, spills, local and private memory of a kernel, read from the object file that a GPU's compiler made of it.

AMD's objects carry a note in msgpack (LLVM's AMDGPU usage guide, code object metadata); of NVIDIA, ptxas says what a
kernel takes (inspected.py). With the facts of the GPU follows how many waves it holds at once.
"""
from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from minigrad.codegen.machines.gpus import Gpu
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


def max_waves(used: Resources, gpu: Gpu) -> int:
    """The number of waves of the kernel that a SIMD of AMD holds at once: vector registers, local memory and whole
    work-groups decide."""
    simds = gpu.schedulers_per_unit * gpu.units_together  # of units that share local memory
    granule = gpu.register_granule * gpu.wave // used.wave
    registers = max(_up(used.vgprs, granule), granule)
    waves = min(gpu.warps_per_unit // gpu.schedulers_per_unit, _registers(gpu) // used.wave // registers)
    in_group = -(-used.group // used.wave)
    groups = waves * simds // in_group
    if used.local:
        groups = min(groups, gpu.local_bytes_per_unit * gpu.units_together // _up(used.local, gpu.local_granule))
    if in_group > 1:
        groups = min(groups, gpu.groups_per_unit * gpu.units_together)
    return -(-groups * in_group // simds)


def max_warps(used: Resources, gpu: Gpu) -> int:
    """The number of warps of the kernel that a multiprocessor of NVIDIA holds at once, of whole work-groups: warps,
    work-groups, registers and local memory decide. 0 if a work-group does not fit."""
    in_group = -(-used.group // used.wave)
    of_warp = _up(max(used.vgprs, 1) * used.wave, gpu.register_granule)
    parts, registers = gpu.schedulers_per_unit, _registers(gpu)  # warps are divided between them, each with its own
    if of_warp * _up(in_group, parts) > registers * parts:
        return 0
    warps = min(gpu.warps_per_unit, registers // of_warp * parts)
    groups = min(warps // in_group, gpu.groups_per_unit)
    local = _up(used.local + gpu.local_reserved, gpu.local_granule)  # per group
    return (min(groups, gpu.local_bytes_per_unit // local) if local else groups) * in_group


def _registers(gpu: Gpu) -> int:
    """Registers of a scheduler, of one work-item each."""
    return gpu.register_bytes_per_unit // gpu.schedulers_per_unit // 4


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
