"""Permission to use the matrix registers of AMX, which Linux gives to a process that asks for it."""
from __future__ import annotations

import ctypes
import platform
from functools import lru_cache

ARCH_PRCTL, REQUEST_STATE, TILE_DATA = 158, 0x1023, 18
"""arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)"""


@lru_cache(maxsize=1)
def allow_matrix_registers() -> bool:
    """True where this process, its threads and its children may use them; False where signal stacks are too small."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    return call(ctypes.c_long(ARCH_PRCTL), ctypes.c_long(REQUEST_STATE), ctypes.c_long(TILE_DATA)) == 0
