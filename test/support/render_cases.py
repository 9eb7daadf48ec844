"""Loop IR functions that both renderers must run as the interpreter does."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from minigrad.codegen.ir.interpret import interpret_function
from minigrad.codegen.ir.nodes import Function, extent_of
from minigrad.codegen.ir.text import parse_function
from minigrad.dtype import BY_SHORT, DType, float32_to_bfloat16
from minigrad.expr import evaluate


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    dims: dict[str, int] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    data: dict[str, object] = field(default_factory=dict)
    rtol: float = 1e-6

    @property
    def function(self) -> Function:
        return parse_function(self.text)


def random_array(dtype: DType, size: int, rng: np.random.Generator) -> np.ndarray:
    """Ordinary numbers in the storage type."""
    if dtype.kind == "b":
        return rng.integers(0, 2, size).astype(np.bool_)
    if dtype.is_int:
        return rng.integers(0 if dtype.kind == "u" else -40, 40, size).astype(dtype.np)
    values = rng.standard_normal(size).astype(np.float32)
    return float32_to_bfloat16(values) if dtype.name == "bfloat16" else values.astype(dtype.np)


def arguments(case: Case) -> tuple[dict[str, np.ndarray], int]:
    """Buffers by name, in argument order, and the number of parallel iterations."""
    f, rng = case.function, np.random.default_rng(7)
    buffers = {}
    for b in f.buffers:
        size = evaluate(b.size, case.dims) + (0 if b.start is None else case.dims[b.start.name])
        given = case.data.get(b.name)
        data = random_array(b.dtype, size, rng) if given is None else np.asarray(given).astype(b.dtype.np)
        assert data.size == size
        # Behind each buffer lies what no program may use: read as an index it leads far away.
        padded = np.frombuffer(data.tobytes() + b"\x7f" * 512, data.dtype.newbyteorder("=")).copy()
        buffers[b.name] = padded[:size]
    return buffers, evaluate(extent_of(f), case.dims)


def expected(case: Case) -> dict[str, np.ndarray]:
    """The buffers as the interpreter leaves them, for the same arguments."""
    buffers, _ = arguments(case)
    interpret_function(case.function, buffers, case.scalars, case.dims)
    return buffers


def check(case: Case, got: dict[str, np.ndarray]) -> None:
    """Compares all buffers, NaN equal to NaN; integers and bools exactly."""
    for b in case.function.buffers:
        x, y = got[b.name], expected(case)[b.name]
        if b.dtype.is_float and b.dtype is not BY_SHORT["bf16"]:
            np.testing.assert_allclose(x, y, rtol=case.rtol, atol=case.rtol, err_msg=f"{case.name}: {b.name}")
        else:
            np.testing.assert_array_equal(x, y, err_msg=f"{case.name}: {b.name}")


INF, NAN = float("inf"), float("nan")
SPECIAL = [0.0, -0.0, 1.5, -2.5, 2.5, 3e9, -3e9, 1e20, -1e20, INF, -INF, NAN, 0.5, -0.5, 1e-40, 300.7]

CASES = [
    Case("scalar_loop", """func scalar_loop(in x: f32[7], out y: f32[7])
  for i in 0..7 serial:
    y[i] = x[i] * 2.0 + 1.0
"""),
    *[Case(f"registers_{n}", """func registers(in x: f32[n], out y: f32[3], n: index in 0..64)
  alloc acc: f32[2] register
  acc[0] = 1.0
  acc[1] = 0.5
  for i in 0..n serial:
    if i-3 >= 0:
      acc[0] = acc[0] + x[i]
      if i-5 >= 0:
        acc[1] = acc[0] * 0.5
    else:
      acc[1] = acc[1] * 2.0 + x[i]
  if n-7 >= 0:
    acc[1] = acc[1] + 100.0
  y[0] = acc[0]
  y[1] = acc[1]
  for j in 0..n serial:
    alloc last: f32[1] register
    last[0] = acc[0] * x[j]
    for k in 0..n serial:
      last[0] = last[0] + acc[1]
    acc[0] = last[0]
  y[2] = acc[0]
""", {"n": n}) for n in (0, 2, 4, 7)],
    Case("masked_square", """func masked_square(in a: f32[40*n], out y: f32[256], n: index in 1..16)
  for p in 0..1 parallel:
    for l in 0..16 vector:
      for u in 0..16 unroll:
        y[l+16*u] = (a[40*l+u+16] else 0.0 if n-1-l >= 0)
""", {"n": 11}),
    Case("square_in_branch", """func square_in_branch(in a: f32[40*n], out y: f32[512], n: index in 1..32)
  for p in 0..2 parallel:
    for l in 0..16 vector:
      if n-16-16*p >= 0:
        for u in 0..16 unroll:
          y[l+16*u+256*p] = a[640*p+40*l+u+16]
      else:
        for u in 0..16 unroll:
          y[l+16*u+256*p] if n-1-16*p-l >= 0 = a[640*p+40*l+u+16]
""", {"n": 21}, data={"y": [0.0] * 512}),
    Case("few_columns", """func few_columns(in a: f32[143], out y: f32[64])
  for p in 0..1 parallel:
    for l in 0..16 vector:
      for u in 0..4 unroll:
        y[l+16*u] = a[9*l+2*u+1]
"""),
    Case("square_at_the_end", """func square_at_the_end(in a: f32[144], out y: f32[144])
  for p in 0..1 parallel:
    for l in 0..16 vector:
      for u in 0..9 unroll:
        y[l+16*u] = a[9*l+u]
"""),
    Case("no_loop", """func no_loop(in x: f32[3], out y: f32[1])
  y[0] = x[0] + x[1] * x[2]
"""),
    Case("pointwise_tail", """func pointwise_tail(in x: f32[n], in y: f32[n], out z: f32[n], n: index in 1..1000)
  for i in 0..(n + 7) // 8 parallel:
    for l in 0..8 vector:
      z[8*i + l] if n - 1 - 8*i - l >= 0 = x[8*i + l] * y[8*i + l] + (x[8*i + l] else 2.0 if 8*i + l - 3 >= 0)
""", dims={"n": 61}),
    Case("matmul_tile", """func matmul_tile(in a: f32[24], in b: f32[96], out c: f32[64])
  for i in 0..2 parallel:
    for j in 0..2 serial:
      for l in 0..8 vector:
        alloc acc: f32[2] register
        for r in 0..2 unroll:
          acc[r] = 0.0
        for k in 0..6 serial:
          for r in 0..2 unroll:
            acc[r] = fma(a[(2*i + r)*6 + k], b[k*16 + 8*j + l], acc[r])
        for r in 0..2 unroll:
          c[(2*i + r)*16 + 8*j + l] = acc[r]
"""),
    Case("padded_window", """func padded_window(in x: f32[48], in w: f32[9], out y: f32[48])
  for i in 0..6 parallel:
    for l in 0..8 vector:
      alloc acc: f32[1] register
      acc[0] = 0.0
      for u in 0..3 serial:
        for v in 0..3 unroll:
          acc[0] = acc[0] + w[3*u + v] * (x[8*(i + u - 1) + l + v - 1] else 0.0 if {INSIDE})
      y[8*i + l] = acc[0]
""".replace("{INSIDE}", "i + u - 1 >= 0 and 6 - i - u >= 0 and l + v - 1 >= 0 and 8 - l - v >= 0")),
    Case("guard_value", """func guard_value(in x: f32[8], in s: f32[4], out y: f32[16])
  for i in 0..2 parallel:
    for l in 0..8 vector:
      y[8*i + l] = (exp(x[8*i + l - 4]) * s[2*i] else 3.0 if 8*i + l - 4 >= 0 and 11 - 8*i - l >= 0)
""", rtol=1e-5),
    Case("strides", """func strides(in x: f32[64], out y: f32[64], out z: f32[64], out s: f32[24])
  for l in 0..8 vector:
    y[l] = x[2*l]
    y[8 + l] = x[3*l + 1]
    y[16 + l] = x[7 - l]
    y[24 + l] = x[5*l]
    y[32 + l] = x[4*l] + x[l // 2] + x[l % 3]
    y[40 + l] = (x[2*l - 3] else 9.0 if 2*l - 3 >= 0)
    y[48 + l] = (x[6 - l] else 9.0 if 6 - l >= 0)
    y[56 + l] = (x[5*l - 6] else 9.0 if 5*l - 6 >= 0)
    z[63 - 3*l] = x[l]
    z[l] if 4 - l >= 0 = x[l]
    s[3*l] if l - 2 >= 0 = x[l]
"""),
    Case("gather", """func gather(in t: f32[40], in ids: i32[8], in small: u8[8], out y: f32[64], out z: f32[8])
  for i in 0..8 parallel:
    for l in 0..8 vector:
      y[8*i + l] = t[8*{ids[i] in 0..4} + l]
    z[i] = t[{ids[i] in 0..4} + {small[i] in 0..30}]
""", data={"ids": [0, 4, 2, 2, 1, 3, 0, 4], "small": [0, 30, 7, 7, 1, 3, 0, 4]}),
    Case("gather_lanes", """func gather_lanes(in t: f32[40], in ids: i32[12], out y: f32[16])
  for i in 0..2 parallel:
    for l in 0..8 vector:
      y[8*i + l] = (t[8*{ids[8*i + l] in 0..4} + l] else 1.0 if 11 - 8*i - l >= 0)
""", data={"ids": [0, 4, 2, 2, 1, 3, 0, 4, 1, 1, 0, 2]}),
    Case("across", """func across(in x: f32[64], out y: f32[8], out m: f32[8], out c: i32[1])
  for i in 0..8 parallel:
    for l in 0..8 vector:
      y[i] = across(sum, x[8*i + l])
      m[i] = across(max, x[8*i + l])
  for l in 0..8 vector:
    c[0] = across(prod, index(l + 1))
""", rtol=1e-5),
    Case("rows", """func rows(in x: f32[5*n], out y: f32[5*n], n: index in 1..100)
  for i in 0..5 parallel:
    alloc m: f32[1] register
    m[0] = -inf
    for j in 0..n serial:
      m[0] = max(m[0], x[i*n + j])
    let top = m[0]
    alloc s: f32[1] register
    s[0] = 0.0
    for j in 0..n serial:
      s[0] = s[0] + exp(x[i*n + j] - top)
    for j in 0..n serial:
      y[i*n + j] = exp(x[i*n + j] - top) / s[0]
""", dims={"n": 13}, rtol=1e-5),
    Case("branches", """func branches(in x: f32[40], out y: f32[40], n: index in 0..5)
  for i in 0..5 parallel:
    if n - 1 - i >= 0:
      for l in 0..8 vector:
        y[8*i + l] = x[8*i + l] + 1.0
    else:
      for l in 0..8 vector:
        y[8*i + l] = 0.0
      for k in 0..n serial:
        for l in 0..8 vector:
          y[8*i + l] = x[8*k + l]
""", dims={"n": 3}),
    Case("scratch", """func scratch(in x: f32[60], out y: f32[60], in e: i32[1])
  for i in 0..6 parallel:
    alloc t: f32[10] scratch
    alloc u: i32[3] scratch
    u[2] = e[0]
    for j in 0..10 serial:
      t[9 - j] = x[10*i + j] * f32(u[2])
    for j in 0..10 serial:
      y[10*i + j] = t[j]
"""),
    Case("scratch_lanes", """func scratch_lanes(in x: f32[64], out y: f32[64])
  for i in 0..2 parallel:
    for l in 0..8 vector:
      alloc t: f32[4] scratch
      for j in 0..4 serial:
        t[3 - j] = x[32*i + 8*j + l]
      for j in 0..4 serial:
        y[32*i + 8*j + l] = t[j] + t[0]
"""),
    Case("masked_stores", """\
func masked_stores(in x: f32[n], inout y: f32[n], inout h: f16[n], in b: b8[n], out c: b8[n], n: index in 1..99)
  for i in 0..(n + 7) // 8 parallel:
    for l in 0..8 vector:
      alloc t: f16[2] scratch
      y[8*i + l] if n - 1 - 8*i - l >= 0 = x[8*i + l] * 3.0
      t[1] = f16((x[8*i + l] / 3.0 else 0.0 if n - 1 - 8*i - l >= 0))
      h[8*i + l] if n - 1 - 8*i - l >= 0 = f16(f32(t[1]) * 3.0 + f32(h[8*i + l]))
      c[8*i + l] if n - 1 - 8*i - l >= 0 = b[8*i + l] ^ true
      y[8*i + l] if n - 2 - 8*i - l >= 0 = x[8*i + l + 1] + y[8*i + l]
""", dims={"n": 29}),
    Case("strided_stores", """\
func strided_stores(in x: f32[32], out y: f32[96], out h: f16[96], out d: i64[64], out b: b8[64])
  for i in 0..2 parallel:
    for l in 0..8 vector:
      y[2*l + 48*i] = x[l + 16*i]
      y[2*l + 48*i + 1] if 5 - l >= 0 = x[l + 16*i + 1] * 2.0
      y[4*l + 48*i + 17] = 3.0
      h[3*l + 48*i + 2] = f16(x[l + 16*i])
      d[4*l + 32*i + 3] if l - 2 >= 0 and i >= 0 = i64(x[2*l + 16*i])
      b[2*l + 32*i] if 1 - 2*i >= 0 = 0.0 < x[l + 16*i]
"""),
    Case("inout", """func inout(inout x: f32[32], in g: f32[32], lr: f32)
  for i in 0..4 parallel:
    for l in 0..8 vector:
      x[8*i + l] = x[8*i + l] - lr * g[8*i + l]
    x[8*i] = x[8*i] * 2.0
    x[8*i] = x[8*i] * 2.0
    x[8*i + 1] = x[8*i]
""", scalars={"lr": 0.5}),
    Case("integers", """func integers(in a: i32[16], in b: i32[16], in u: u8[16], out y: i32[128], out v: u8[32])
  for i in 0..16 parallel:
    y[i] = a[i] + b[i] * a[i]
    y[16 + i] = idiv(a[i], b[i] | 1) - irem(a[i], b[i] | 1)
    y[32 + i] = (a[i] << 3) ^ (b[i] >> 2) & ~a[i]
    y[48 + i] = max(a[i], b[i]) * min(a[i], 7) + abs(b[i])
    y[64 + i] = -a[i] + i32(u[i])
    y[80 + i] = where(a[i] < b[i], i32(a[i] == b[i]), i32(a[i] != b[i]) + i32(a[i] <= b[i]))
    y[96 + i] = index(3*i + 1) * 1000000000
    y[112 + i] = i32(i64(a[i]) * 5000000000:i64 >> 8:i64)
    v[i] = (u[i] >> 1:u8) + max(u[i], 20:u8) * u[i]
    v[16 + i] = u8(a[i])
"""),
    Case("integers_vector", """\
func integers_vector(in a: i32[16], in b: i32[16], in u: u8[16], out y: i32[96], out v: u8[32])
  for i in 0..2 parallel:
    for l in 0..8 vector:
      y[8*i + l] = a[8*i + l] + b[8*i + l] * a[8*i + l]
      y[16 + 8*i + l] = idiv(a[8*i + l], b[8*i + l] | 1) - irem(a[8*i + l], b[8*i + l] | 1)
      y[32 + 8*i + l] = (a[8*i + l] << 3) ^ (b[8*i + l] >> 2) & ~a[8*i + l]
      y[48 + 8*i + l] = max(a[8*i + l], b[8*i + l]) * min(a[8*i + l], 7) + abs(b[8*i + l])
      y[64 + 8*i + l] = where(a[8*i + l] < b[8*i + l], i32(a[8*i + l] == b[8*i + l]), -i32(u[8*i + l]))
      y[80 + 8*i + l] = index(8*i + 3*l) + index(i) + i32(i64(a[8*i + l]) * 5000000000:i64 >> 8:i64)
      v[8*i + l] = (u[8*i + l] >> 1:u8) + max(u[8*i + l], 20:u8) * u[8*i + l]
      v[16 + 8*i + l] = u8(a[8*i + l])
"""),
    Case("float_casts", """\
func float_casts(in x: f32[16], out a: i32[32], out b: u8[32], out c: i8[32], out d: i64[32], out e: u32[32])
  for i in 0..16 serial:
    a[i] = i32(x[i])
    b[i] = u8(x[i])
    c[i] = i8(x[i])
    d[i] = i64(x[i])
    e[i] = u32(x[i])
  for i in 0..2 serial:
    for l in 0..8 vector:
      a[16 + 8*i + l] = i32(x[8*i + l])
      b[16 + 8*i + l] = u8(x[8*i + l])
      c[16 + 8*i + l] = i8(x[8*i + l])
      d[16 + 8*i + l] = i64(x[8*i + l])
      e[16 + 8*i + l] = u32(x[8*i + l])
""", data={"x": SPECIAL}),
    Case("extrema", """func extrema(in x: f32[16], in z: f32[16], out y: f32[96], out t: b8[96])
  for i in 0..16 serial:
    y[i] = max(x[i], z[i])
    y[16 + i] = min(x[i], z[i])
    y[32 + i] = max(x[i], 0.0)
    y[48 + i] = round(x[i]) + floor(x[i]) * 3.0
    y[64 + i] = ceil(x[i]) + trunc(x[i]) * 3.0
    y[80 + i] = abs(x[i]) + sqrt(abs(z[i])) - (-z[i]) / x[i]
    t[i] = x[i] < z[i]
    t[16 + i] = x[i] == z[i]
    t[32 + i] = x[i] != z[i]
    t[48 + i] = x[i] <= z[i]
    t[64 + i] = b8(x[i])
    t[80 + i] = ~(x[i] < z[i]) & (z[i] < 1.0) | (x[i] != x[i]) ^ true
""", data={"x": SPECIAL, "z": SPECIAL[5:] + SPECIAL[:5]}),
    Case("extrema_vector", """\
func extrema_vector(in x: f32[16], in z: f32[16], out y: f32[96], out t: b8[64], in q: b8[16])
  for i in 0..2 serial:
    for l in 0..8 vector:
      y[8*i + l] = max(x[8*i + l], z[8*i + l])
      y[16 + 8*i + l] = min(z[8*i + l], x[8*i + l])
      y[32 + 8*i + l] = min(1.0, x[8*i + l])
      y[48 + 8*i + l] = round(x[8*i + l]) + floor(x[8*i + l]) * 3.0
      y[64 + 8*i + l] = ceil(x[8*i + l]) + trunc(x[8*i + l]) * 3.0
      y[80 + 8*i + l] = where(q[8*i + l], abs(x[8*i + l]), f32(q[8*i + l]) + sqrt(abs(z[8*i + l])))
      t[8*i + l] = x[8*i + l] < z[8*i + l]
      t[16 + 8*i + l] = (x[8*i + l] != z[8*i + l]) & q[8*i + l]
      t[32 + 8*i + l] = b8(x[8*i + l])
      t[48 + 8*i + l] = ~q[8*i + l] ^ (q[8*i + l] | (z[8*i + l] < 1.0))
""", data={"x": SPECIAL, "z": SPECIAL[5:] + SPECIAL[:5]}),
    Case("halves", """\
func halves(in h: f16[16], in g: bf16[16], in x: f32[16], out y: f32[32], out a: f16[32], out b: bf16[32])
  for i in 0..16 serial:
    y[i] = f32(h[i]) + f32(g[i])
    a[i] = f16(x[i])
    b[i] = bf16(x[i])
  for i in 0..2 serial:
    for l in 0..8 vector:
      y[16 + 8*i + l] = f32(h[8*i + l]) * (f32(g[8*i + l]) else 0.5 if 8*i + l - 2 >= 0)
      a[16 + 8*i + l] = f16(x[8*i + l] / 3.0)
      b[16 + 8*i + l] = bf16(x[8*i + l] / 3.0)
""", data={"x": [*SPECIAL[:3], 65519.0, 65520.0, 6e-8, 1e-6, *SPECIAL[7:]]}),
    Case("bits", """func bits(in x: f32[16], in q: b8[16], out y: i32[16], out z: f32[16], out w: u8[16])
  for i in 0..2 parallel:
    for l in 0..8 vector:
      y[8*i + l] = bitcast(x[8*i + l], i32) >> 23
      z[8*i + l] = bitcast(bitcast(x[8*i + l], u32) ^ 2147483648:u32, f32)
      w[8*i + l] = u8(q[8*i + l]) + 3:u8
"""),
    Case("odd_width", """func odd_width(in x: f32[30], out y: f32[30], out s: f32[5])
  for i in 0..5 parallel:
    for l in 0..6 vector:
      alloc acc: f32[1] register
      acc[0] = x[6*i + l]
      for k in 0..3 serial:
        acc[0] = acc[0] * 0.5 + f32(index(l + k))
      y[6*i + l] = acc[0]
      s[i] = across(sum, acc[0])
""", rtol=1e-5),
    Case("wide_vector", """func wide_vector(in x: f32[n], out y: f32[n], n: index in 1..999)
  for i in 0..(n + 23) // 24 parallel:
    for l in 0..24 vector:
      alloc acc: f32[1] register
      alloc t: f32[2] scratch
      acc[0] = (x[24*i + l] else 1.0 if n - 1 - 24*i - l >= 0)
      t[1] = acc[0] * f32(index(l))
      for k in 0..3 serial:
        acc[0] = acc[0] * 0.5 + t[1]
      y[24*i + l] if n - 1 - 24*i - l >= 0 = acc[0]
""", dims={"n": 77}),
    Case("bytes", """func bytes(in b: u8[128], out c: u8[128])
  for i in 0..2 parallel:
    for l in 0..64 vector:
      c[64*i + l] = b[64*i + 63 - l] + 1:u8
"""),
    Case("divisions", """func divisions(in x: f32[48], out y: f32[48], n: index in 1..6)
  for p in 0..48 parallel:
    let far = f32(index((p - 20) // 3)) + f32(index((p - 20) % 7)) + f32(index(max(p - 9, min(p, n))))
    y[p] = x[p // 6 + 8*(p % 6)] + x[(p // n) % 5] + far
""", dims={"n": 5}),
    Case("wide_conditions", """func wide_conditions(in x: f32[16], out y: f32[16], n: index in 0..5000000000)
  for i in 0..2 parallel:
    for l in 0..8 vector:
      y[8*i + l] = (x[8*i + l] else 7.0 if n - 4999999990 - l >= 0)
""", dims={"n": 4999999994}),
    Case("zero_trips", """func zero_trips(in x: f32[n], out y: f32[4], n: index in 0..9)
  for i in 0..4 parallel:
    alloc s: f32[1] register
    s[0] = 1.0
    for k in 0..n serial:
      s[0] = s[0] + x[0]
    y[i] = s[0]
""", dims={"n": 0}),
]
CASES += [Case("zero_trips_some", CASES[-1].text.replace("zero_trips", "zero_trips_some"), dims={"n": 3})]
CASES += [Case(f"pointwise_tail_{n}", CASES[2].text.replace("pointwise_tail", f"pointwise_tail_{n}"), dims={"n": n})
          for n in (1, 8, 64)]
CASES += [Case("from_dims", """\
func from_dims(in a: f16[9] from m, in b: b8[12] from n, inout y: f32[12] from n, m: index in 1..9, n: index in 1..9)
  for p in 0..3 parallel:
    for l in 0..4 vector:
      y[4*p+l] if -4*p-l+10 >= 0 = (f32(a[4*p+l]) else y[4*p+l] if -4*p-l+8 >= 0) + where(b[4*p+l], 1.0, 0.0)
""", dims={"m": 7, "n": 3})]
CASES += [Case("one_lane_in_turn", """\
func one_lane_in_turn(out o0: bf16[16], in p0: bf16[4], in p1: bf16[36])
  for p in 0..1 parallel:
    for l in 0..4 vector:
      alloc acc: f32[4] register
      for u in 0..2 unroll:
        for v in 0..2 unroll:
          acc[2*u+v] = 0.0
      for r0 in 0..3 serial:
        for r1 in 0..3 serial:
          for u in 0..2 unroll:
            for v in 0..2 unroll:
              acc[2*u+v] = fma((f32(p0[2*r0+r1+u+2*v-3]) else 0.0 if r0+v-1 >= 0 and -r0-v+2 >= 0 and \
r1+u-1 >= 0 and -r1-u+2 >= 0), f32(p1[9*l+3*r0+r1]), acc[2*u+v])
      for u in 0..2 unroll:
        for v in 0..2 unroll:
          o0[4*l+u+2*v] = bf16(acc[2*u+v])
""")]
