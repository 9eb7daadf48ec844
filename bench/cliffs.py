"""Networks in which a convolution or a sum reads what is made of its operand on the way: padded, resampled, gathered.
Fusing that must not cost more than storing it first."""
from __future__ import annotations

from bench.descriptions import Layer, Network, around, layer

SIZE, BATCH = 128, 2


def _image(name: str, inputs: int, size: int, *layers: Layer, out: tuple[int, ...]) -> Network:
    """A 1x1 convolution first, so that what is measured has a gradient to hand on."""
    first = (layer("Conv2d", inputs, inputs, 1), layer("ReLU"))
    return Network(name, (BATCH, inputs, size, size), (*first, *layers), (BATCH, *out), False)


def cliffs() -> list[Network]:
    """Those that were found slow, in sizes of public scripts."""
    pads = {"reflection": layer("ReflectionPad2d", 4), "replication": layer("ReplicationPad2d", 4),
            "circular": layer("CircularPad2d", 4), "zero": layer("ZeroPad2d", 4)}
    found = [_image(f"{kind} pad, 9x9 convolution {a} to {b}", a, SIZE, pad, layer("Conv2d", a, b, 9),
                    out=(b, SIZE, SIZE))
             for kind, pad in pads.items() for a, b in ((32, 3), (3, 32))]
    pad3 = layer("ReflectionPad2d", 1)
    found += [
        _image("reflection pad, 3x3 convolution 64 to 64", 64, 32, pad3, layer("Conv2d", 64, 64, 3), out=(64, 32, 32)),
        _image("reflection pad, 3x3 convolution, instance norm, residual", 64, 32, around(
            "Residual", pad3, layer("Conv2d", 64, 64, 3), layer("InstanceNorm2d", 64, affine=True), layer("ReLU"),
            pad3, layer("Conv2d", 64, 64, 3)), out=(64, 32, 32)),
        _image("stride 2 after a reflection pad, 32 to 64", 32, SIZE, pad3, layer("Conv2d", 32, 64, 3, 2),
               out=(64, SIZE // 2, SIZE // 2))]
    resampled = {
        "nearest": layer("Upsample", scale_factor=2), "nearest to a size": layer("Upsample", size=(50, 50)),
        "bilinear": layer("Upsample", scale_factor=2, mode="bilinear"),
        "bicubic": layer("Upsample", scale_factor=2, mode="bicubic")}
    for kind, up in resampled.items():
        size = 50 if "size" in kind else 64
        for how, conv in (("padded 3x3", layer("Conv2d", 64, 32, 3, padding=1)),
                          ("reflected 3x3", layer("Conv2d", 64, 32, 3, padding=1, padding_mode="reflect"))):
            found.append(_image(f"upsampling by {kind}, {how} convolution 64 to 32", 64, 32, up, conv,
                                out=(32, size, size)))
    found.append(_image("pixel shuffle, padded 3x3 convolution", 64, 32, layer("PixelShuffle", 2),
                        layer("Conv2d", 16, 32, 3, padding=1), out=(32, 64, 64)))
    found.append(_image("transposed convolution 4x4 by 2, 64 to 32", 64, 32,
                        layer("ConvTranspose2d", 64, 32, 4, 2, 1), out=(32, 64, 64)))
    found.append(Network("embedding, convolution of 5, maximum", (32, 60), (
        layer("Embedding", 5000, 100), layer("Transpose"), layer("Conv1d", 100, 64, 5), layer("ReLU"),
        layer("AdaptiveMaxPool1d", 1), layer("Flatten"), layer("Linear", 64, 2)), (32, 2), True, 5000, "Adam"))
    found.append(Network("embedding, linear layer", (64, 64), (
        layer("Embedding", 2000, 128), layer("Linear", 128, 128), layer("ReLU"), layer("Mean"),
        layer("Linear", 128, 5)), (64, 5), True, 2000, "Adam"))
    return found
