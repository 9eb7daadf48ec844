"""Kernels of windows that tests share."""
# mypy: disable-error-code="arg-type,type-var"
from support.packed import tensor

from minigrad import Tensor


def depthwise(of: str, *size: int, batch: int = 2, channels: int = 3, multiplier: int = 1, kernel: int | tuple = 3,
              stride: int = 1, dilation: int = 1, padding: int | tuple = 1) -> Tensor:
    """The layer, or its gradient by 'data' or 'weight'."""
    window = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    x, w = tensor(batch, channels, *size), tensor(channels * multiplier, 1, *window)
    x.requires_grad = w.requires_grad = True
    y = x.conv2d(w, groups=channels, stride=stride, dilation=dilation, padding=padding)
    if of == "forward":
        return y
    return (y * tensor(*y.shape)).sum().gradient(x if of == "data" else w)[0]


def fused_gradient(*size: int) -> Tensor:
    """By data, through activations on both sides of a strided layer."""
    x, w = tensor(1, 2, *size), tensor(2, 1, 3, 3)
    x.requires_grad = True
    y = x.silu().conv2d(w, groups=2, stride=2, padding=1)
    return y.gradient(x, gradient=tensor(*y.shape).relu() * 2.0)[0]


def prologue_gradient(*size: int, stride: int = 1) -> Tensor:
    """By weights, of an image that is computed on the way."""
    x, w = tensor(2, 2, *size), tensor(2, 1, 5, 5)
    w.requires_grad = True
    y = (x * tensor(2, 1, 1)).silu().conv2d(w, groups=2, padding=2, stride=stride)
    return (y * tensor(*y.shape)).sum().gradient(w)[0]


CASES = {
    "3x3": lambda: depthwise("forward", 7, 9),
    "5x5": lambda: depthwise("forward", 14, 14, batch=1, kernel=5, padding=2),
    "long rows": lambda: depthwise("forward", 3, 150, batch=1, channels=1, kernel=5, padding=2),
    "many rows": lambda: depthwise("forward", 61, 6, batch=1, channels=1),
    "strided": lambda: depthwise("forward", 15, 18, stride=2),
    "strided 5x5": lambda: depthwise("forward", 14, 17, batch=1, kernel=5, stride=2, padding=2),
    "stride 3": lambda: depthwise("forward", 10, 40, batch=1, stride=3),
    "dilated": lambda: depthwise("forward", 9, 19, batch=1, dilation=2, padding=2),
    "stride and dilation": lambda: depthwise("forward", 13, 21, stride=2, dilation=3, padding=3),
    "no padding": lambda: depthwise("forward", 9, 12, padding=0),
    "wide padding": lambda: depthwise("forward", 4, 5, padding=4),
    "wide padding and a prologue": lambda: tensor(1, 2, 4, 5).silu().conv2d(tensor(2, 1, 3, 3), groups=2, padding=4),
    "rows in a loop": lambda: tensor(1, 2, 6, 37).silu().conv2d(tensor(2, 1, 5, 5), groups=2, padding=2),
    "strided rows in a loop": lambda: tensor(1, 1, 9, 90).silu().conv2d(tensor(1, 1, 3, 3), padding=1, stride=2),
    "rows of uneven residues in a loop": lambda: tensor(1, 1, 9, 101).silu().conv2d(
        tensor(1, 1, 5, 5), padding=2, stride=3),
    "uneven padding": lambda: depthwise("forward", 8, 8, padding=(2, 0)),
    "channel multiplier": lambda: depthwise("forward", 7, 8, multiplier=3),
    "one row of taps": lambda: depthwise("forward", 6, 11, kernel=(1, 4), padding=(0, 2)),
    "one column of taps": lambda: depthwise("forward", 6, 11, kernel=(4, 1), padding=(2, 0)),
    "prologue": lambda: (tensor(2, 3, 7, 9) * tensor(3, 1, 1) + 1.0).relu().conv2d(
        tensor(3, 1, 3, 3), groups=3, padding=1),
    "epilogue": lambda: (depthwise("forward", 7, 9) * tensor(3, 1, 1) + tensor(2, 3, 7, 9)).silu(),
    "computed weights": lambda: tensor(2, 3, 7, 9).conv2d(tensor(3, 1, 3, 3).tanh(), groups=3, padding=1),
    "strided prologue": lambda: tensor(2, 3, 9, 11).silu().conv2d(tensor(3, 1, 5, 5), groups=3, padding=2, stride=2),
    "max pooling": lambda: tensor(1, 3, 17, 19).max_pool2d(3, stride=2, padding=1),
    "average pooling": lambda: tensor(2, 3, 12, 18).avg_pool2d(2),
    "float64": lambda: tensor(1, 2, 7, 9).cast("float64").conv2d(
        tensor(2, 1, 3, 3).cast("float64"), groups=2, padding=1),
    "float16": lambda: tensor(1, 2, 7, 9).cast("float16").contiguous().conv2d(
        tensor(2, 1, 3, 3).cast("float16").contiguous(), groups=2, padding=1),
    "int32": lambda: (tensor(1, 2, 7, 9) * 9).cast("int32").max_pool2d(3, stride=1),
    "data gradient": lambda: depthwise("data", 7, 9),
    "data gradient 5x5": lambda: depthwise("data", 14, 9, batch=1, kernel=5, padding=2),
    "strided data gradient": lambda: depthwise("data", 16, 14, stride=2),
    "strided data gradient of odd size": lambda: depthwise("data", 13, 15, stride=2),
    "strided data gradient 5x5": lambda: depthwise("data", 14, 28, batch=1, kernel=5, stride=2, padding=2),
    "data gradient with a prologue and an epilogue": lambda: fused_gradient(15, 16),
    "dilated data gradient": lambda: depthwise("data", 14, 9, dilation=2, padding=2),
    "weight gradient": lambda: depthwise("weight", 7, 9),
    "weight gradient 5x5": lambda: depthwise("weight", 9, 19, channels=1, kernel=5, padding=2),
    "strided weight gradient": lambda: depthwise("weight", 15, 18, stride=2),
    "strided weight gradient 5x5": lambda: depthwise("weight", 14, 15, channels=1, kernel=5, stride=2, padding=2),
    "dilated weight gradient": lambda: depthwise("weight", 14, 15, dilation=2, padding=2),
    "weight gradient of one image": lambda: depthwise("weight", 13, 21, batch=1),
    "weight gradient with a prologue": lambda: prologue_gradient(10, 21),
    "strided weight gradient with a prologue": lambda: prologue_gradient(11, 42, stride=2),
    "weight gradient of long rows": lambda: depthwise("weight", 5, 70, batch=1, channels=1, kernel=5, padding=2),
}
FOR_ALL = ("many rows", "wide padding and a prologue", "strided weight gradient with a prologue",
           "strided", "wide padding", "channel multiplier", "epilogue", "weight gradient", "float64",
           "strided weight gradient", "weight gradient of one image", "strided data gradient of odd size")
"""Cases for every target; the others for AVX-512 and AVX2."""
