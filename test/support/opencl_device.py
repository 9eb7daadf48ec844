"""Programs in OpenCL C and the devices that run them."""
from typing import Any

import numpy as np

from minigrad.program import Program
from minigrad.runtime.device import Buffer
from minigrad.runtime.opencl import OpenCL

SCALE = Program("scale", "opencl", """
__kernel void scale(__global float *restrict y, long y_offset, __global const float *restrict x, long x_offset,
                    float factor, int shift, long extent)
{
  long p = get_global_id(0);
  if (p >= extent) return;
  y[y_offset + p] = x[x_offset + p] * factor + shift;
}
""", ("buffer:4", "buffer:4", "f32", "i32"))


def fill(device: OpenCL, array: np.ndarray) -> Buffer:
    buffer = device.alloc(array.nbytes)
    device.copy_in(buffer, array)
    return buffer


def read(buffer: Buffer, dtype: Any, count: int) -> np.ndarray:
    out = np.empty(count, dtype)
    buffer.device.copy_out(buffer, out)
    return out
