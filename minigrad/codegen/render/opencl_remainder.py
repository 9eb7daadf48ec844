"""The exact remainder of floats, `rem` of `value/core.py`, as functions of OpenCL C.

That of the language is exact by its specification, but that of PoCL (3.1) does not end within minutes where quotients
are large. The usual quotient, with fewer digits than a float, takes a division and a multiply-add here; what that does
not make sure goes lane by lane through a division of significands as integers.
"""
from __future__ import annotations

from minigrad.dtype import DType, float32


def remainder(dtype: DType, lanes: int, has_fma: bool) -> tuple[str, list[str]]:
    """(the name of a function of two operands, the texts that define it)."""
    kind = ("float" if dtype is float32 else "double") + (str(lanes) if lanes > 1 else "")
    return f"rem_{kind}", [_by_integers(dtype), _at_once(dtype, kind, lanes, has_fma)]


def _by_integers(dtype: DType) -> str:
    """Of one lane's magnitudes: i * 2**e by j * 2**f leaves (i * 2**(e - f) mod j) * 2**f."""
    kind, whole, bits, suffix = ("float", "uint", 23, "f") if dtype is float32 else ("double", "ulong", 52, "")
    one = f"(ulong)1 << {bits}"
    return f"""static {kind} rem_digits_{kind}({kind} x, {kind} y) {{
  if (!(x < ({kind})INFINITY && y > 0)) return ({kind})NAN;
  if (x < y) return x;
  const {whole} of_x = as_{whole}(x), of_y = as_{whole}(y);
  const int e = max((int)(of_x >> {bits}), 1), f = max((int)(of_y >> {bits}), 1);
  const ulong j = (of_y & (({one}) - 1)) | (of_y >> {bits} ? {one} : 0);
  ulong i = ((of_x & (({one}) - 1)) | (of_x >> {bits} ? {one} : 0)) % j;
  for (int left = e - f; left > 0; left -= {63 - bits}) i = (i << min(left, {63 - bits})) % j;
  return ({kind})i * 0x1p-{bits}{suffix} * as_{kind}(({whole})f << {bits});
}}"""


def _at_once(dtype: DType, kind: str, lanes: int, has_fma: bool) -> str:
    scalar = "float" if dtype is float32 else "double"
    many = f"0x1p{22 if dtype is float32 else 51}" + ("f" if dtype is float32 else "")
    if has_fma:
        near = f"""  const {kind} whole = trunc(x / y), left = fma(-whole, y, x);
  {kind} r = left < 0 ? left + y : left;"""
        sure = f"(whole < {many}) & (r >= 0) & (r < y)"
    else:
        near, sure = f"  {kind} r = x;", "x < y"
    if lanes == 1:
        slow = f"  if (!({sure})) r = rem_digits_{scalar}(x, y);"
    else:
        slow = f"""  if (!all({sure})) {{
    {scalar} of_x[{lanes}], of_y[{lanes}];
    vstore{lanes}(x, 0, of_x);
    vstore{lanes}(y, 0, of_y);
    for (int lane = 0; lane < {lanes}; lane++) of_x[lane] = rem_digits_{scalar}(of_x[lane], of_y[lane]);
    r = vload{lanes}(0, of_x);
  }}"""
    return f"""static {kind} rem_{kind}({kind} a, {kind} b) {{
  const {kind} x = fabs(a), y = fabs(b);
{near}
{slow}
  return copysign(r, a);
}}"""
