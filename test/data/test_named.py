"""Public data sets from folders and from a server on this machine, and what makes a download go wrong."""
import gzip
import hashlib
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minigrad.config import config
from minigrad.data import MNIST, FashionMNIST
from minigrad.data.fetch import Source, fetch
from minigrad.data.named import read_idx
from minigrad.errors import FormatError


def idx(array: np.ndarray) -> bytes:
    kind = {"uint8": 8, "int32": 12, "float32": 13}[array.dtype.name]
    return struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape) + array.astype(
        array.dtype.newbyteorder(">")).tobytes()


def digits(count: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"images-idx3-ubyte": rng.integers(0, 256, (count, 28, 28)).astype(np.uint8),
            "labels-idx1-ubyte": rng.integers(0, 10, count).astype(np.uint8)}


FILES = {f"{part}-{name}": array for part, count in (("train", 7), ("t10k", 3))
         for name, array in digits(count, count).items()}


class Server:
    """Files at http://127.0.0.1:PORT/, `limit` bytes at a time before the connection breaks."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.limit: int | None = None
        self.ranges = True
        self.asked: list[tuple[str, str | None]] = []
        self.port = 0

    @property
    def home(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, asked = self.path[1:], self.headers.get("Range")
            state.asked.append((name, asked))
            if name not in state.files:
                self.send_error(404)
                return
            whole, start = state.files[name], 0
            if asked and state.ranges:
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
                if start >= len(whole):
                    self.send_error(416)
                    return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(whole) - start))
            self.end_headers()
            self.wfile.write(whole[start:None if state.limit is None else start + state.limit])

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        state.port = running.server_address[1]
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield state
        running.shutdown()


@contextmanager
def served(server: Server, kind: type[MNIST]) -> Iterator[type[MNIST]]:
    """A data set whose home is the server."""
    server.files = {f"{name}.gz": gzip.compress(idx(array)) for name, array in FILES.items()}

    class Served(kind):  # type: ignore[valid-type, misc]
        homes = (server.home,)
        md5 = {name: hashlib.md5(server.files[f"{name}.gz"]).hexdigest() for name in FILES}

    Served.__name__ = kind.__name__
    yield Served


@pytest.mark.parametrize("kind", [MNIST, FashionMNIST])
def test_it_is_fetched_once(server: Server, tmp_path: Path, kind: type[MNIST]) -> None:
    with served(server, kind) as made, config(cache_dir=tmp_path):
        train, test = made(), made(train=False)
        assert np.array_equal(train.data[:, 0], FILES["train-images-idx3-ubyte"])
        assert train.targets.tolist() == FILES["train-labels-idx1-ubyte"].tolist()
        assert (len(train), len(test), train.targets.dtype) == (7, 3, np.int64)
        assert train[2][0].shape == (1, 28, 28)
        count = len(server.asked)
        assert np.array_equal(made().data, train.data)
        assert len(server.asked) == count == 4
        assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("layout", ["{name}", "{name}.gz", "MNIST/raw/{name}", "raw/{name}.gz"])
def test_a_given_folder_is_enough(tmp_path: Path, layout: str) -> None:
    for name, array in FILES.items():
        path = tmp_path / layout.format(name=name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(idx(array)) if path.suffix == ".gz" else idx(array))
    assert np.array_equal(MNIST(tmp_path, download=False).data[:, 0], FILES["train-images-idx3-ubyte"])
    path.unlink()
    with pytest.raises(FormatError, match=r"expected t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte\.gz there"):
        MNIST(tmp_path, train=False, download=False)


def test_an_npz_of_a_folder(data_dir: Path, tmp_path: Path) -> None:
    data = MNIST(data_dir / "mnist", train=False)
    assert len(data) == 10_000 and np.bincount(data.targets).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028,
                                                                         974, 1009]
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros(3))
    with pytest.raises(FormatError, match="expected arrays x_train and y_train"):
        MNIST(tmp_path)
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros((3, 28, 28)), y_train=np.zeros(4))
    with pytest.raises(FormatError, match=r"labels \[N\], got \[3, 28, 28\] and \[4\]"):
        MNIST(tmp_path)


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.uint8).reshape(2, 3), np.array([-5, 7], np.int32),
                                   np.zeros((0, 2), np.float32)], ids=str)
def test_arrays_of_idx_files(tmp_path: Path, array: np.ndarray) -> None:
    path = tmp_path / "x"
    path.write_bytes(idx(array))
    assert np.array_equal(read_idx(path), array) and read_idx(path).dtype == array.dtype
    for broken in (b"", idx(array)[:-1] if array.size else b"\0\0", b"\0\0\x01\x01\0\0\0\0", idx(array) + b"x"):
        path.write_bytes(broken)
        with pytest.raises(FormatError, match="expected an array in the IDX format"):
            read_idx(path)
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(idx(array))[:-3])
    with pytest.raises(FormatError, match="expected an array in the IDX format"):
        read_idx(path)


CONTENT = bytes(range(256)) * 40


def source(*homes: str, content: bytes = CONTENT) -> Source:
    return Source(tuple(f"{home}x.bin" for home in homes), "sha256", hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("ranges", [True, False])
def test_it_goes_on_where_the_connection_broke(server: Server, tmp_path: Path, ranges: bool) -> None:
    server.files["x.bin"], server.limit, server.ranges = CONTENT, 4000, ranges
    target = tmp_path / "folder" / "x.bin"
    for got in (4000, 8000 if ranges else 4000):
        with pytest.raises(FormatError, match=f"the connection ended after {got} of {len(CONTENT)} bytes"):
            fetch(source(server.home), target)
        assert not target.exists()
    server.limit = None
    assert fetch(source(server.home), target).read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [None, "bytes=4000-", f"bytes={8000 if ranges else 4000}-"]


def test_another_home_is_asked(server: Server, tmp_path: Path) -> None:
    server.files["x.bin"] = CONTENT
    missing = f"{server.home}none/"
    assert fetch(source("http://127.0.0.1:9/", missing, server.home), tmp_path / "x.bin").read_bytes() == CONTENT


def test_a_wrong_file_is_not_kept(server: Server, tmp_path: Path) -> None:
    server.files["x.bin"] = CONTENT[:-1] + b"?"
    words = re.escape("cannot fetch x.bin: 127.0.0.1") + r":\d+ has another file of that name, with sha256 \w+ instead"
    with pytest.raises(FormatError, match=words):
        fetch(source(server.home), tmp_path / "x.bin")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("start, right", [(CONTENT, True), (CONTENT + b"more", False), (b"other" + CONTENT[5:], False)])
def test_what_an_earlier_attempt_left_is_checked(server: Server, tmp_path: Path, start: bytes, right: bool) -> None:
    server.files["x.bin"] = CONTENT
    (tmp_path / "x.bin.part").write_bytes(start)
    if not right:
        with pytest.raises(FormatError, match="has another file of that name"):
            fetch(source(server.home), tmp_path / "x.bin")
        assert list(tmp_path.iterdir()) == []
    assert fetch(source(server.home), tmp_path / "x.bin").read_bytes() == CONTENT


def test_nobody_has_it(server: Server, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"cannot fetch x.bin: 127.0.0.1:\d+ says 404 Not Found; 127.0.0.1:9 says .*"
                                          "refused; a file of that name in"):
        fetch(source(server.home, "http://127.0.0.1:9/"), tmp_path / "x.bin")
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match="cannot write"):
        fetch(source(server.home), tmp_path / "file" / "x.bin")
