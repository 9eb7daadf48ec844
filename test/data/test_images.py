"""Images from files, and folders of them."""
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minigrad.data import DataLoader, ImageFolder, read_image
from minigrad.errors import FormatError

Image: Any = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.usefixtures("on_numpy")


def photo(width: int, height: int, seed: int = 0) -> np.ndarray:
    """uint8 [height, width, 3]: something smooth, which JPEG keeps nearly as it is."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 255 // max(1, width - 1), y * 255 // max(1, height - 1), (x + y + seed) % 64 + 90],
                    -1).astype(np.uint8)


def folder(tmp_path: Path) -> Path:
    """Two classes with three photos each, and files that are none."""
    for name in ("cat", "dog"):
        (tmp_path / name / "more").mkdir(parents=True)
        for k, kind in enumerate(("a.png", "b.JPG", "more/c.bmp")):
            Image.fromarray(photo(20 + k, 16, k)).save(tmp_path / name / kind)
        (tmp_path / name / "notes.txt").write_text("none")
    return tmp_path


def test_pixels_are_those_of_the_file(tmp_path: Path) -> None:
    pixels = photo(9, 7)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    assert np.array_equal(read_image(tmp_path / "x.png"), pixels.transpose(2, 0, 1))
    grey = read_image(tmp_path / "x.png", mode="L")
    assert grey.shape == (1, 7, 9) and grey.flags.c_contiguous
    for mode in ("P", "1", "RGBA", "CMYK", "I;16", "LA"):
        made = Image.fromarray(pixels[..., 0].astype(np.uint16)) if mode == "I;16" else \
            Image.fromarray(pixels).convert(mode)
        path = tmp_path / f"x.{'tif' if mode in ('CMYK', 'I;16') else 'png'}"
        made.save(path)
        assert read_image(path).shape == (3, 7, 9)


@pytest.mark.parametrize("width, height", [(40, 30), (30, 40), (8, 8), (7, 90), (1, 1), (800, 601)])
@pytest.mark.parametrize("size", [16, (12, 20)])
def test_the_middle_of_the_smallest_that_covers(tmp_path: Path, width: int, height: int, size: Any) -> None:
    path = tmp_path / "x.jpg"
    Image.fromarray(photo(width, height)).save(path, quality=95)
    got = read_image(path, size)
    rows, columns = (size, size) if isinstance(size, int) else size
    assert got.shape == (3, rows, columns) and got.dtype == np.uint8
    if min(width, height) > 20:  # red grows to the right: in the middle, which may be half a pixel off, it is half
        off = 127 / min(rows, columns) + 2
        assert abs(float(got[0].mean()) - 127) < off and abs(float(got[1].mean()) - 127) < off


def test_samples_of_a_folder(tmp_path: Path) -> None:
    data = ImageFolder(folder(tmp_path), size=8)
    assert data.classes == ["cat", "dog"] and data.class_to_idx == {"cat": 0, "dog": 1}
    assert len(data) == 6 and data.targets == [0, 0, 0, 1, 1, 1]
    assert [Path(path).name for path, _ in data.samples] == ["a.png", "b.JPG", "c.bmp"] * 2
    images, labels = next(iter(DataLoader(data, 6, num_workers=2)))
    assert images.shape == (6, 3, 8, 8) and images.dtype.name == "uint8" and labels.tolist() == data.targets
    changed = ImageFolder(tmp_path, 8, transform=lambda x: x[:1], target_transform=lambda t: -t)
    assert changed[3][0].shape == (1, 8, 8) and changed[3][1] == -1
    assert len(ImageFolder(tmp_path, is_valid_file=lambda p: p.endswith("png"), loader=lambda p: p)) == 2


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="expected a folder with a folder of images for each class, found none"):
        ImageFolder(tmp_path / "x")
    with pytest.raises(FormatError, match="expected a folder of images for each class in it"):
        ImageFolder(tmp_path)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "x.txt").write_text("x")
    with pytest.raises(FormatError, match=r"cat: expected images \(.*\), found 1 other file"):
        ImageFolder(tmp_path)


def broken_files() -> dict[str, bytes]:
    """Files that are no sound images."""
    found = {"empty": b"", "text": b"not an image"}
    for kind in ("jpeg", "png", "webp", "gif"):
        out = io.BytesIO()
        Image.fromarray(photo(64, 64)).save(out, kind)
        whole = out.getvalue()
        found[f"half a {kind}"] = whole[:len(whole) // 2]
        if kind != "gif":  # whose last byte is a mark that says nothing
            found[f"a {kind} of three quarters"] = whole[:len(whole) * 3 // 4]
    whole = found["half a png"]
    found["a png with other bytes"] = whole[:40] + bytes(len(whole) - 40)
    return found


@pytest.mark.parametrize("kind", broken_files())
@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_is_one_line_with_its_path(tmp_path: Path, kind: str, workers: int) -> None:
    data = ImageFolder(folder(tmp_path), size=8)
    path = Path(data.samples[4][0])
    path.write_bytes(broken_files()[kind])
    with pytest.raises(FormatError) as caught:
        list(DataLoader(data, 2, num_workers=workers))
    words = str(caught.value)
    assert words.startswith(f"{path}: ") and "\n" not in words
    assert words.endswith("expected an image file such as JPEG or PNG")
    path.unlink()
    with pytest.raises(FormatError, match="no such file or directory; expected an image"):
        data[4]
