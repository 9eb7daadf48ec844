"""Pictures in files: read for the autoencoder, written whole or not at all, and sheets of many small ones."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from examples import training as common
from minigrad.data.images import read_image
from minigrad.errors import ConfigError, FormatError
from minigrad.state.mapped import atomic_file

ENDINGS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".bmp": "BMP"}
"""Names of files that pictures are written to, and Pillow's names of their formats."""


def check_name(path: Path, option: str) -> None:
    """Raises ConfigError for a name that no picture can have, before anything is drawn."""
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"{option}: expected a file that ends in {', '.join(ENDINGS)}, got {path}")
    if not path.parent.is_dir():
        raise ConfigError(f"{option}: there is no folder {path.parent}")


def read_picture(path: Path, height: int, width: int) -> np.ndarray:
    """A picture as float32 [3, height, width] in -1..1. Raises FormatError."""
    return read_image(path, (height, width)).astype(np.float32) / 127.5 - 1


def write_picture(pixels: np.ndarray, path: Path) -> None:
    """Writes uint8 [H, W, 3]. Raises FormatError where it cannot be, such as on a full disk."""
    _save(_pillow("Image").fromarray(pixels), path)


def write_sheet(images: np.ndarray, names: list[str], path: Path, scale: int = 2) -> None:
    """Writes images uint8 [rows, columns, H, W], light things on black, as dark ones on white, each pixel `scale` wide,
    with the name of each row. Raises FormatError."""
    image, draw, fonts = (_pillow(module) for module in ("Image", "ImageDraw", "ImageFont"))
    rows, columns, height, width = images.shape
    tall, wide, left = height * scale + 4, width * scale + 4, 96
    page = image.new("L", (left + columns * wide + 4, rows * tall + 4), 255)
    pen, font = draw.Draw(page), fonts.load_default(13)
    for row, name in enumerate(names):
        pen.text((8, row * tall + tall // 2), name, fill=0, font=font, anchor="lm")
        for column in range(columns):
            one = image.fromarray(255 - images[row, column])
            page.paste(one.resize((width * scale, height * scale), image.Resampling.BICUBIC),
                       (left + column * wide, row * tall + 4))
    _save(page, path)


def _save(picture: Any, path: Path) -> None:
    with common.writing(path), atomic_file(path) as out:
        picture.save(out, ENDINGS[path.suffix.lower()])


def _pillow(module: str) -> Any:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise FormatError('pictures need pillow: pip install "minigrad[examples]"') from None
    return {"Image": Image, "ImageDraw": ImageDraw, "ImageFont": ImageFont}[module]
