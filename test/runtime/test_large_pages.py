"""Memory of buffers in large pages: pieces of blocks, given back one by one."""
import gc
import mmap
import weakref

import numpy as np
import pytest

from minigrad.runtime import large_pages
from minigrad.runtime.cpu import CPU
from minigrad.runtime.host import address_of, allocate_aligned
from minigrad.runtime.large_pages import BLOCK, LARGE_PAGE, LEAST, LINE, PAGE, LargePages

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no large pages")

SIZES = (LEAST, LEAST + 64, 100_000, 3 << 20, BLOCK // 2, BLOCK // 2 + 1, 5 << 20, BLOCK + 64, 1 << 20)


def address(piece: np.ndarray) -> int:
    return piece.ctypes.data


def test_pieces_are_aligned_and_apart():
    pages = LargePages()
    pieces = [pages.take(nbytes) for nbytes in SIZES]
    assert [piece.nbytes for piece in pieces] == list(SIZES)
    assert all(address(piece) % LINE == 0 for piece in pieces)
    for k, piece in enumerate(pieces):
        piece[:] = k + 1
    assert all((piece == k + 1).all() for k, piece in enumerate(pieces))


def test_pieces_follow_each_other_in_a_block():
    pages = LargePages()
    first, second, third = (pages.take(1 << 20) for _ in range(3))
    assert address(first) % LARGE_PAGE == 0
    assert 0 < address(second) - address(first) - (1 << 20) < PAGE
    places = {address(piece) % PAGE for piece in (first, second, third)}
    assert len(places) == 3
    assert address(pages.take(BLOCK // 2 + 64)) % LARGE_PAGE == 0


def test_small_memory_comes_from_elsewhere(monkeypatch):
    assert LargePages().take(LEAST - 1) is None
    monkeypatch.setattr(large_pages, "_ADVICE", None)
    assert LargePages().take(1 << 20) is None


def test_what_the_system_refuses_comes_from_elsewhere():
    assert LargePages().take(1 << 60) is None


def test_a_piece_that_is_given_up_leaves_its_neighbours_alone():
    pages = LargePages()
    pieces = [pages.take(nbytes) for nbytes in (50_001, 70_003, 60_000)]
    for k, piece in enumerate(pieces):
        piece[:] = k + 1
    block, start = pieces[1].base, address(pieces[1])
    gone = weakref.ref(pieces[1])
    del pieces[1], piece
    gc.collect()
    assert gone() is None
    assert (pieces[0] == 1).all() and (pieces[1] == 3).all()
    whole = np.frombuffer(block, np.uint8)
    inside = whole[start - address(whole):][PAGE:70_003 - PAGE]
    assert not inside.any()  # the pages went back to the system: read again, they are new ones


def test_a_block_goes_with_its_last_piece():
    pages = LargePages()
    piece = pages.take(BLOCK // 2)
    block = weakref.ref(piece.base.obj)
    del piece
    gc.collect()
    assert block() is not None  # the next piece may come from it
    for _ in range(2):  # the second one does not fit any more and opens another block
        assert pages.take(BLOCK // 2) is not None
    gc.collect()
    assert block() is None


def test_buffers_are_used_again():
    device = CPU(1)
    buffer = device.alloc(1 << 20)
    place = address_of(buffer)
    device.free(buffer)
    again = device.alloc(1 << 20)
    assert address_of(again) == place
    other = device.alloc(1 << 20)
    assert address_of(other) != place
    view = again.handle[:8]
    device.free(again)
    assert address_of(device.alloc(1 << 20)) != place
    assert view.nbytes == 8


def test_host_memory_is_aligned_either_way(monkeypatch):
    for nbytes in (1, 63, LEAST - 1, LEAST, 1 << 20):
        assert allocate_aligned(nbytes).nbytes == nbytes and allocate_aligned(nbytes).ctypes.data % LINE == 0
    monkeypatch.setattr(large_pages, "_ADVICE", None)
    assert allocate_aligned(1 << 20).ctypes.data % LINE == 0
