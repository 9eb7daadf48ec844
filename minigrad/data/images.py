"""Photos: files to arrays by Pillow, and folders of them as a data set."""
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minigrad.data.dataset import Dataset
from minigrad.errors import FormatError, quantity

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")


def read_image(path: str | Path, size: int | tuple[int, int] | None = None, mode: str = "RGB") -> np.ndarray:
    """uint8 [channels, height, width] of an image file, 3 channels for `mode` RGB and 1 for L.

    With `size` (height, width, or one number for both) the image is made as small as covers it, and its middle cut out.
    Raises FormatError, in one line with the path, for a file that is missing, cut short or no image.
    """
    try:
        from PIL import Image
    except ImportError:
        raise FormatError('reading images needs pillow: pip install "minigrad[data]"') from None
    try:
        with Image.open(path) as opened:
            height, width = (size, size) if isinstance(size, int) else size or (0, 0)
            if size is not None:  # JPEG decodes to 1/2, 1/4 or 1/8 much faster
                opened.draft(mode if mode in ("RGB", "L") else None, _covering(opened.size, width, height))
            image = opened.convert(mode)
    except OSError as error:
        reason = error.strerror.lower() if error.strerror else _reason(error)
        raise FormatError(f"{path}: {reason}; expected an image file such as JPEG or PNG") from None
    except Exception as error:  # what decoders raise for broken files is of many types
        raise FormatError(f"{path}: {_reason(error)}; expected an image file such as JPEG or PNG") from None
    if size is not None:
        image = image.resize(_covering(image.size, width, height), Image.Resampling.BILINEAR, reducing_gap=3.0)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    pixels = np.asarray(image, np.uint8)
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def _covering(size: tuple[int, int], width: int, height: int) -> tuple[int, int]:
    """The smallest (width, height) in the proportions of `size` that covers an area."""
    scale = max(width / size[0], height / size[1])
    return max(width, round(size[0] * scale)), max(height, round(size[1] * scale))


def _reason(error: Exception) -> str:
    words = str(error).lower()
    known = "truncated" in words or "cannot identify" in words
    return "not an image, or cut short" if known else f"not a sound image ({' '.join(words.split())[:80]})"


class ImageFolder(Dataset):
    """Photos in `root`/CLASS/..., one folder for each class: (uint8 [3, height, width], number of the class).

    Names of classes are sorted, as in torchvision: `classes`, `class_to_idx`, and `samples` with (path, class). `size`
    as in `read_image`. `transform` takes the array, `target_transform` the number. `loader` reads a path instead of
    `read_image`. Raises FormatError where there is no folder, no class, or no image in some class.
    """

    def __init__(self, root: str | Path, size: int | tuple[int, int] | None = None,
                 transform: Callable[[Any], Any] | None = None,
                 target_transform: Callable[[Any], Any] | None = None,
                 loader: Callable[[str], Any] | None = None,
                 is_valid_file: Callable[[str], bool] | None = None, mode: str = "RGB"):
        self.root, self.size, self.mode = Path(root), size, mode
        self.transform, self.target_transform, self.loader = transform, target_transform, loader
        self.classes, self.samples = _found(self.root, is_valid_file)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[int]:
        """The class of each sample."""
        return [number for _, number in self.samples]

    def __len__(self) -> int:
        return len(self.samples)

    def image(self, index: int) -> Any:
        """The image of a sample, before `transform`."""
        path = self.samples[index][0]
        return read_image(path, self.size, self.mode) if self.loader is None else self.loader(path)

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        image, target = self.image(index), self.samples[index][1]
        return (image if self.transform is None else self.transform(image),
                target if self.target_transform is None else self.target_transform(target))


def _found(root: Path, is_valid: Callable[[str], bool] | None) -> tuple[list[str], list[tuple[str, int]]]:
    """(names of classes, (path, class) of each image), sorted."""
    if not root.is_dir():
        raise FormatError(f"{root}: expected a folder with a folder of images for each class, found none")
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    if not classes:
        raise FormatError(f"{root}: expected a folder of images for each class in it, found none")
    samples = []
    for number, name in enumerate(classes):
        paths = sorted(os.path.join(folder, file) for folder, _, files in os.walk(root / name, followlinks=True)
                       for file in files)
        kept = [p for p in paths if (p.lower().endswith(EXTENSIONS) if is_valid is None else is_valid(p))]
        if not kept:
            raise FormatError(f"{root / name}: expected images ({', '.join(EXTENSIONS)}), found "
                              f"{quantity(len(paths), 'other file')}")
        samples += [(path, number) for path in kept]
    return classes, samples
