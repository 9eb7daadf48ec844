"""DLPack capsules: the fields of one that numpy, which makes and takes them here, does not know.

numpy has no bfloat16: such memory passes through it as uint16, with the type's code in the capsule exchanged. Layouts
are those of dlpack.h, version 1.
"""
from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from minigrad.errors import SharingError

CPU, OPENCL = 1, 4
"""Codes of kinds of devices."""
UINT, BFLOAT = 1, 4
"""Codes of kinds of types."""
VERSION = 1, 0
"""The latest version whose capsules are understood."""

_CAPSULES = b"dltensor_versioned", b"dltensor"


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64)]


class _Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


def _function(name: str, result: Any) -> Any:
    function = getattr(ctypes.pythonapi, name)
    function.restype, function.argtypes = result, [ctypes.py_object, ctypes.c_char_p]
    return function


_is_valid, _pointer = _function("PyCapsule_IsValid", ctypes.c_int), _function("PyCapsule_GetPointer", ctypes.c_void_p)


def _header(capsule: Any) -> _DLTensor:
    """The fields of a capsule that nobody took yet. Raises SharingError for anything else, and for another major
    version."""
    name = next((n for n in _CAPSULES if _is_valid(capsule, n)), None)
    if name is None:
        raise SharingError(f"[dlpack] expected a capsule 'dltensor' or 'dltensor_versioned' that nobody has taken, got "
                           f"{capsule!r}")
    address = _pointer(capsule, name)
    if name == b"dltensor":
        return _DLTensor.from_address(address)
    versioned = _Versioned.from_address(address)
    if versioned.major != VERSION[0]:
        raise SharingError(f"[dlpack] expected version {VERSION[0]} of DLPack, got {versioned.major}.{versioned.minor}")
    return versioned.tensor


def exported(array: np.ndarray, bfloat16: bool, max_version: tuple[int, int] | None, copy: bool | None) -> Any:
    """A capsule over an array's memory, or a copy of it; with `bfloat16`, of an array of uint16."""
    try:
        capsule = array.__dlpack__(max_version=max_version, copy=copy)
    except BufferError as e:
        raise SharingError(f"[dlpack] expected a consumer of version 1 of DLPack, which can be told that memory is "
                           f"read-only, got max_version={max_version}: {e}") from None
    if bfloat16:
        _header(capsule).code = BFLOAT
    return capsule


class _Producer:
    """A capsule for numpy to take."""

    def __init__(self, capsule: Any):
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0


def imported(producer: Any, copy: bool | None) -> tuple[np.ndarray, bool]:
    """(an array over the memory of what has `__dlpack__`, True for bfloat16 kept as uint16). The array keeps the
    memory alive. Memory of other devices is asked for as a copy on the host. Raises SharingError."""
    place = int(producer.__dlpack_device__()[0])
    try:
        capsule = producer.__dlpack__(max_version=VERSION, dl_device=None if place == CPU else (CPU, 0), copy=copy)
    except TypeError:  # one that was written before version 1
        if copy is not None or place != CPU:
            raise SharingError(f"[from_dlpack] expected memory of the host, and copy=None, of a producer before "
                               f"version 1 of DLPack, got {type(producer).__name__} on device kind {place}, copy={copy}"
                               ) from None
        capsule = producer.__dlpack__()
    header = _header(capsule)
    if header.lanes != 1:
        raise SharingError(f"[from_dlpack] expected numbers, got vectors of {header.lanes} lanes")
    bfloat16 = header.code == BFLOAT and header.bits == 16
    if bfloat16:
        header.code = UINT
    try:
        return np.from_dlpack(_Producer(capsule)), bfloat16
    except (BufferError, RuntimeError) as e:
        raise SharingError(f"[from_dlpack] expected numbers of a type that minigrad has, in memory of the host, got "
                           f"type code {header.code} of {header.bits} bits on device kind {header.device_type}: {e}"
                           ) from None
