"""What loops touch outside its memory is found, and what conditions keep inside is none."""
import pytest

from minigrad.codegen.ir.check_accesses import check_accesses
from minigrad.codegen.ir.text import parse_function
from minigrad.errors import InternalError

HEAD = "func f(in a: f32[64], inout y: f32[64], n: index in 1..8)\n"


@pytest.mark.parametrize("text, inside", [
    ("  for i in 0..8 serial:\n    for l in 0..8 vector:\n      y[8*i+l] = a[8*i+l]\n", True),
    ("  for i in 0..8 serial:\n    for l in 0..8 vector:\n      y[8*i+l] = a[8*i+l+1]\n", False),
    ("  for i in 0..9 serial:\n    for l in 0..8 vector:\n      y[8*i+l] if -8*i-l+63 >= 0 = a[8*i+l]\n", True),
    ("  for i in 0..9 serial:\n    for l in 0..8 vector:\n      y[8*i+l] if -8*i-l+64 >= 0 = 1.0\n", False),
    ("  for i in 0..70 serial:\n    y[0] = (a[i-3] else 0.0 if i-3 >= 0 and -i+66 >= 0)\n", True),
    ("  for i in 0..70 serial:\n    y[0] = (a[i-3] else 0.0 if i-2 >= 0 and -i+66 >= 0)\n", False),
    ("  for i in 0..n serial:\n    for k[0..7] in 0..n-i serial:\n      y[9*i+8*k] = 1.0\n", True),
    ("  for i in 0..n serial:\n    if i-4 >= 0:\n      y[0] = 1.0\n    else:\n      y[16*i+15] = 1.0\n", True),
    ("  for i in 0..n serial:\n    if i-5 >= 0:\n      y[0] = 1.0\n    else:\n      y[16*i+15] = 1.0\n", False),
    ("  for i in 0..8 serial:\n    alloc s: f32[8] scratch\n    s[7-i] = 1.0\n    y[i] = s[i+1]\n", False),
])
def test_accesses_outside_are_found(text: str, inside: bool) -> None:
    function = parse_function(HEAD + text)
    dims = dict.fromkeys(function.dims, 8)
    if inside:
        check_accesses(function, dims)
        return
    with pytest.raises(InternalError, match="beyond the last element"):
        check_accesses(function, dims)
