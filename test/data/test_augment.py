"""Augmentations beside plain numpy twins, image by image; the same numbers from any number of workers, in a capture."""
import math
from typing import Any

import numpy as np
import pytest

from minigrad import Tensor, config, jit
from minigrad.data import ArrayDataset, DataLoader, augment
from minigrad.data.augment.draws import CHOOSE, CROP, ERASE, FLIP, JITTER, MIX, RAND
from minigrad.data.augment.mixing import beta, beta_table
from minigrad.data.augment.rand import OPERATIONS
from minigrad.errors import DTypeError, ShapeError

pytestmark = pytest.mark.usefixtures("on_numpy")
F = np.float32


def drawn(key: int, purpose: int, count: int) -> list[np.float32]:
    """The random numbers of one sample, by the hash in plain integers."""
    found = []
    for place in range(count):
        x = (key + (purpose * 64 + 1 + place) * 0x9E3779B9) % 2**32
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        found.append(F((x ^ x >> 16) >> 8) * F(2.0**-24))
    return found


def batch(n: int = 6, c: int = 3, h: int = 13, w: int = 17) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n + h)
    return rng.integers(0, 256, (n, c, h, w), np.uint8), rng.integers(0, 2**32, n, np.uint64).astype(np.uint32)


def both(function: Any, twin: Any, *args: Any, tolerance: float = 2e-3, **options: Any) -> None:
    x, keys = batch()
    got = function(Tensor(x), Tensor(keys), *args, **options).numpy()
    want = np.stack([twin(image, int(key), *args, **options) for image, key in zip(x, keys, strict=True)])
    np.testing.assert_allclose(got.astype(np.float64), want, atol=tolerance, rtol=1e-5)


def bilinear(image: np.ndarray, y: float, x: float, fill: float | None) -> np.ndarray:
    _, h, w = image.shape
    y0, x0 = math.floor(y), math.floor(x)

    def at(i: int, j: int) -> np.ndarray:
        if fill is not None and not (0 <= i < h and 0 <= j < w):
            return np.full(len(image), fill, np.float64)
        return image[:, min(max(i, 0), h - 1), min(max(j, 0), w - 1)].astype(np.float64)

    dy, dx = y - y0, x - x0
    return ((at(y0, x0) * (1 - dx) + at(y0, x0 + 1) * dx) * (1 - dy)
            + (at(y0 + 1, x0) * (1 - dx) + at(y0 + 1, x0 + 1) * dx) * dy)


def test_draws_are_the_hash_of_key_purpose_and_place() -> None:
    keys = np.array([0, 1, 12345, 2**32 - 1], np.uint32)
    got = augment.draws(Tensor(keys), 3, 5).numpy()
    assert (got == np.array([drawn(int(k), 3, 5) for k in keys], F)).all()


def test_draws_are_uniform_and_not_related() -> None:
    keys = np.random.default_rng(0).integers(0, 2**32, 4000, np.uint64).astype(np.uint32)
    got = augment.draws(Tensor(keys), CROP, 4).numpy()
    assert abs(got.mean(0) - 0.5).max() < 0.02 and abs(got.std(0) - 12**-0.5).max() < 0.01
    assert abs(np.corrcoef(got.T) - np.eye(4)).max() < 0.06


@pytest.mark.parametrize("size, padding", [((13, 17), 0), ((9, 5), 0), (13, 2), ((17, 21), 2)])
def test_random_crop(size: Any, padding: int) -> None:
    def twin(image: np.ndarray, key: int, size: Any, padding: int, fill: float) -> np.ndarray:
        h, w = (size, size) if isinstance(size, int) else size
        padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)), constant_values=int(fill))
        u, v = drawn(key, CROP, 2)
        top, left = int(u * F(padded.shape[1] - h + 1)), int(v * F(padded.shape[2] - w + 1))
        return padded[:, top:top + h, left:left + w]

    both(augment.random_crop, twin, size, padding, 7, tolerance=0)
    x, keys = batch()
    assert augment.random_crop(Tensor(x), Tensor(keys), size, padding).dtype.name == "uint8"


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_random_flip(p: float) -> None:
    both(augment.random_flip, lambda image, key, p: image[:, :, ::-1] if drawn(key, FLIP, 1)[0] < p else image, p,
         tolerance=0)


@pytest.mark.parametrize("size, scale", [((8, 11), (0.1, 1.0)), (20, (0.9, 1.0)), (1, (0.5, 0.5))])
def test_random_resized_crop(size: Any, scale: tuple[float, float]) -> None:
    def twin(image: np.ndarray, key: int, size: Any, scale: tuple[float, float]) -> np.ndarray:
        h, w = (size, size) if isinstance(size, int) else size
        _, height, width = image.shape
        a, b, u, v = map(float, drawn(key, CROP, 4))
        area = (scale[0] + a * (scale[1] - scale[0])) * height * width
        ratio = math.exp(math.log(3 / 4) + b * (math.log(4 / 3) - math.log(3 / 4)))
        pw, ph = min(math.sqrt(area * ratio), width), min(math.sqrt(area / ratio), height)
        top, left = u * (height - ph), v * (width - pw)
        rows = [min(max(top + (i + 0.5) * ph / h - 0.5, 0), height - 1) for i in range(h)]
        columns = [min(max(left + (j + 0.5) * pw / w - 0.5, 0), width - 1) for j in range(w)]
        return np.array([[bilinear(image, y, x, None) for x in columns] for y in rows]).transpose(2, 0, 1)

    both(augment.random_resized_crop, twin, size, scale)


def test_random_erase_and_cutout() -> None:
    def erase(image: np.ndarray, key: int, p: float) -> np.ndarray:
        c, a, b, u, v = map(float, drawn(key, ERASE, 5))
        _, height, width = image.shape
        area, ratio = (0.02 + a * (1 / 3 - 0.02)) * height * width, math.exp(math.log(0.3) + b * math.log(3.3 / 0.3))
        w, h = min(round(math.sqrt(area * ratio)), width), min(round(math.sqrt(area / ratio)), height)
        top, left = math.floor(u * (height - h + 1)), math.floor(v * (width - w + 1))
        image = image.copy()
        if c < p:
            image[:, top:top + h, left:left + w] = 0
        return image

    def cut(image: np.ndarray, key: int, size: int) -> np.ndarray:
        u, v = map(float, drawn(key, ERASE, 2))
        top, left = math.floor(u * image.shape[1]) - size // 2, math.floor(v * image.shape[2]) - size // 2
        image = image.copy()
        image[:, max(top, 0):top + size, max(left, 0):left + size] = 0
        return image

    both(augment.random_erase, erase, 0.6, tolerance=0)
    both(augment.cutout, cut, 7, tolerance=0)


def test_color_jitter() -> None:
    luma = np.array([0.299, 0.587, 0.114]).reshape(3, 1, 1)
    to = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])

    def twin(image: np.ndarray, key: int, b: float, c: float, s: float, hue: float) -> np.ndarray:
        u = [float(d) for d in drawn(key, JITTER, 4)]
        x = np.clip(image * (1 + (2 * u[0] - 1) * b), 0, 255)
        mean = (x * luma).sum(0).mean()
        x = np.clip(mean + (1 + (2 * u[1] - 1) * c) * (x - mean), 0, 255)
        grey = (x * luma).sum(0)
        x = np.clip(grey + (1 + (2 * u[2] - 1) * s) * (x - grey), 0, 255)
        angle = (2 * u[3] - 1) * 2 * math.pi * hue
        turn = np.array([[1, 0, 0], [0, math.cos(angle), -math.sin(angle)], [0, math.sin(angle), math.cos(angle)]])
        return np.clip(np.einsum("ij,jhw->ihw", np.linalg.inv(to) @ turn @ to, x), 0, 255)

    both(augment.color_jitter, twin, 0.4, 0.3, 0.5, 0.1)


def rand_twin(image: np.ndarray, key: int, count: int, magnitude: float) -> np.ndarray:
    """RandAugment with a branch for each operation."""
    u, level, x = [float(d) for d in drawn(key, RAND, 2 * count)], magnitude / 10, image.astype(np.float64)
    _, h, w = x.shape
    for k in range(count):
        name, sign = OPERATIONS[int(u[2 * k] * len(OPERATIONS))], -1.0 if u[2 * k + 1] < 0.5 else 1.0
        amount = sign * level
        y, z = np.mgrid[:h, :w] - np.array([(h - 1) / 2, (w - 1) / 2]).reshape(2, 1, 1)
        moved = {"shear_x": (y, z + 0.3 * amount * y), "shear_y": (y + 0.3 * amount * z, z),
                 "translate_x": (y, z + 0.45 * amount * w), "translate_y": (y + 0.45 * amount * h, z),
                 "rotate": (y * math.cos(amount * math.pi / 6) - z * math.sin(amount * math.pi / 6),
                            z * math.cos(amount * math.pi / 6) + y * math.sin(amount * math.pi / 6))}.get(name)
        if moved is not None:
            ys, xs = moved[0] + (h - 1) / 2, moved[1] + (w - 1) / 2
            x = np.array([[bilinear(x, ys[i, j], xs[i, j], 128) for j in range(w)] for i in range(h)])
            x = x.transpose(2, 0, 1)
        factor = 1 + 0.9 * amount
        luma = (x * np.array([0.299, 0.587, 0.114]).reshape(3, 1, 1)).sum(0)
        smooth = x.copy()
        for i in range(1, h - 1):
            for j in range(1, w - 1):
                smooth[:, i, j] = (x[:, i - 1:i + 2, j - 1:j + 2].sum((1, 2)) + 4 * x[:, i, j]) / 13
        other = {"brightness": 0.0, "color": luma, "contrast": luma.mean(), "sharpness": smooth}.get(name)
        if other is not None:
            x = x * factor + other * (1 - factor)
        if name == "autocontrast":
            low, high = x.min((1, 2), keepdims=True), x.max((1, 2), keepdims=True)
            x = np.where(high > low, (x - low) * 255 / np.maximum(high - low, 1e-3), x)
        x = np.clip(x, 0, 255)
        if name == "solarize":
            x = np.where(x >= 255 - 255 * level, 255 - x, x)
        if name == "posterize":
            x = np.floor(x / 2 ** round(4 * level)) * 2 ** round(4 * level)
    return x


def test_rand_augment_is_the_operation_that_was_drawn() -> None:
    n = 120  # so that each operation comes up
    rng = np.random.default_rng(5)
    x, keys = rng.integers(0, 256, (n, 3, 9, 11), np.uint8), rng.integers(0, 2**32, n, np.uint64).astype(np.uint32)
    assert {int(float(drawn(int(k), RAND, 1)[0]) * len(OPERATIONS)) for k in keys} == set(range(len(OPERATIONS)))
    got = augment.rand_augment(Tensor(x), Tensor(keys), 1, 7).numpy()
    want = np.stack([rand_twin(image, int(key), 1, 7) for image, key in zip(x, keys, strict=True)])
    np.testing.assert_allclose(got, want, atol=2e-2)


def test_mixup_and_cutmix_mix_images_and_labels_alike() -> None:
    x, keys = batch(5)
    labels = np.array([0, 1, 2, 3, 1])
    y = augment.one_hot(Tensor(labels), 4, 0.1)
    hot = np.eye(4)[labels] * 0.9 + 0.1 / 4
    np.testing.assert_allclose(y.numpy(), hot, atol=1e-6)
    xm, ym = (t.numpy() for t in augment.mixup(Tensor(x), y, Tensor(keys), 0.4))
    shares = beta(Tensor(np.array([drawn(int(k), MIX, 1) for k in keys], F)), 0.4).numpy()
    np.testing.assert_allclose(ym, hot * shares + hot[::-1] * (1 - shares), atol=1e-5)
    s = shares.reshape(-1, 1, 1, 1)
    np.testing.assert_allclose(xm, x * s + x[::-1] * (1 - s), atol=1e-2)
    xc, yc = (t.numpy() for t in augment.cutmix(Tensor(x), y, Tensor(keys), 1.0))
    for k in range(5):
        a, u, v = map(float, drawn(int(keys[k]), MIX, 3))
        side, inside = math.sqrt(1 - a), np.zeros((13, 17), bool)  # Beta(1, 1) is uniform
        (my, hy), (mx, hx) = ((math.floor(p * n), math.floor(side * n) / 2) for p, n in ((u, 13), (v, 17)))
        inside[max(math.floor(my - hy), 0):max(math.floor(my + hy), 0),
               max(math.floor(mx - hx), 0):max(math.floor(mx + hx), 0)] = True
        assert (xc[k] == np.where(inside, x[4 - k], x[k])).all()
        np.testing.assert_allclose(yc[k], hot[k] * (1 - inside.mean()) + hot[4 - k] * inside.mean(), atol=1e-5)
    both_, _ = augment.mixup_or_cutmix(Tensor(x), y, Tensor(keys), 0.4, 1.0)
    chosen = [drawn(int(k), CHOOSE, 1)[0] < 0.5 for k in keys]
    np.testing.assert_allclose(both_.numpy(), np.where(np.array(chosen).reshape(-1, 1, 1, 1), xm, xc), atol=1e-2)


@pytest.mark.parametrize("alpha", [0.1, 0.4, 1.0, 3.0])
def test_beta_numbers_have_their_distribution(alpha: float) -> None:
    uniform = (np.arange(2000) + 0.5) / 2000
    got = beta(Tensor(uniform.astype(F)), alpha).numpy().astype(np.float64)
    assert (np.diff(got) >= 0).all() and got.min() >= 0 and got.max() <= 1
    np.testing.assert_allclose(got + got[::-1], 1, atol=1e-6)
    np.testing.assert_allclose(got.var(), 1 / (4 * (2 * alpha + 1)), rtol=5e-3)  # Beta's variance
    assert beta_table(alpha).shape == (1025,)
    if alpha == 1:
        np.testing.assert_allclose(got, uniform, atol=2e-4)


def test_normalize_takes_numbers_for_all_or_each_channel() -> None:
    x, _ = batch()
    np.testing.assert_allclose(augment.normalize(Tensor(x), 127, 128).numpy(), (x - 127.0) / 128, atol=1e-6)
    mean, std = np.array([1.0, 2, 3]), np.array([4.0, 5, 6])
    np.testing.assert_allclose(augment.normalize(Tensor(x), [*mean], [*std]).numpy(),
                               (x - mean.reshape(3, 1, 1)) / std.reshape(3, 1, 1), atol=1e-5)


def test_bad_arguments_are_named() -> None:
    x, keys = (Tensor(a) for a in batch())
    for call, error, words in (
            (lambda: augment.random_crop(x, keys, 20), ShapeError, "at most 13 x 17, got 20 x 20"),
            (lambda: augment.random_flip(x, keys[:3]), ShapeError, "a key for each of 6 images, got \\[3\\]"),
            (lambda: augment.random_flip(x[0], keys), ShapeError, "images \\[N, C, H, W\\], got \\[3, 13, 17\\]"),
            (lambda: augment.random_flip(x, keys.float()), DTypeError, "keys of uint32"),
            (lambda: augment.random_flip(x, keys, 1.5), ShapeError, "p in 0..1, got 1.5"),
            (lambda: augment.random_resized_crop(x, keys, 4, (0.0, 2.0)), ShapeError, "of scale"),
            (lambda: augment.mixup(x, keys.float(), keys), ShapeError, "probabilities \\[6, classes\\]"),
            (lambda: augment.normalize(x, [1, 2], 1), ShapeError, "each of 3 channels"),
            (lambda: beta(keys.float(), 0), ShapeError, "alpha above 0, got 0")):
        with pytest.raises(error, match=words):
            call()


def test_empty_batches_stay_empty() -> None:
    x, keys = Tensor(np.zeros((0, 3, 8, 8), np.uint8)), Tensor(np.zeros(0, np.uint32))
    assert augment.random_flip(augment.random_crop(x, keys, 4), keys).shape == (0, 3, 4, 4)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sample_is_changed_alike_in_any_batch_by_any_number_of_workers(workers: int) -> None:
    x, _ = batch(12)

    def epochs(count: int, size: int) -> list[dict[int, bytes]]:
        loader = DataLoader(ArrayDataset(x, np.arange(12)), size, shuffle=True, num_workers=count, generator=3,
                            keys=True)
        found = []
        for _ in range(2):
            seen = {}
            for images, numbers, keys in loader:
                changed = augment.random_erase(augment.random_resized_crop(images, keys, 8), keys, 0.5).numpy()
                seen.update({int(k): image.tobytes() for k, image in zip(numbers.numpy(), changed, strict=True)})
            found.append(seen)
        return found

    alone, together = epochs(0, 4), epochs(workers, 3)
    assert alone == together and alone[0] != alone[1]


def test_pixels_go_through_one_kernel_and_another_that_flips() -> None:
    with config(device="CPU"):
        x, keys = (Tensor(a).realize() for a in batch(4, 3, 32, 32))

        @jit
        def changed(x: Tensor, keys: Tensor) -> Tensor:
            x = augment.random_flip(augment.random_resized_crop(x, keys, 32), keys)
            return augment.normalize(augment.random_erase(x, keys), 127, 128)

        got = [changed(x, keys).numpy() for _ in range(2)]
        from minigrad import show

        cropped = augment.random_resized_crop(x, keys, 32)
        flipped = augment.random_flip(cropped, keys)
        for images, count in ((cropped, 1), (flipped, 2), (augment.random_erase(flipped, keys), 2)):
            text = show(augment.normalize(images, 127, 128), stage="kernels")
            kernels = [line for line in text.splitlines() if line.startswith("kernel ")]
            assert len([k for k in kernels if "(out o0: f32[4, 3, 32, 32]" in k]) == count, text
    assert (got[0] == got[1]).all()
    np.testing.assert_allclose(got[0], augment.normalize(augment.random_erase(augment.random_flip(
        augment.random_resized_crop(Tensor(x.numpy()), Tensor(keys.numpy()), 32), Tensor(keys.numpy())),
        Tensor(keys.numpy())), 127, 128).numpy(), atol=1e-4)
