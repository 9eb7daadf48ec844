"""Groups of units that two processes compile: the code is the same, whoever does it, and failures are made good."""
import sys
import time

import pytest
from support.cpu_programs import increment

from minigrad.codegen.render.llvm import QUICK
from minigrad.config import config
from minigrad.errors import CompileError
from minigrad.runtime import llvm_batch, llvm_emit
from minigrad.runtime.cpu import shared_jit
from minigrad.runtime.llvm_batch import Batch
from minigrad.runtime.llvm_emit import Emitter
from minigrad.runtime.llvm_jit import Jit, Unit

HOST = shared_jit().processor


@pytest.fixture(autouse=True)
def eager_to_ask(monkeypatch):
    """Help is called for the first group, on any machine."""
    monkeypatch.setattr(llvm_batch, "HELP_CHARS", 0)
    monkeypatch.setattr(llvm_batch, "GROUP_UNITS", 2)
    monkeypatch.setattr(llvm_batch, "usable_cores", lambda: 2)
    with config(threads=2, disk_cache=False):
        yield


def sources(count: int) -> dict[str, llvm_emit.Source]:
    return {f"key{i}": ((f"k{i}",), increment(f"k{i}", 10 + i).source) for i in range(count)}


def filled(emit, units) -> Batch:
    batch = Batch(emit, HOST)
    for key, source in units.items():
        batch.add(key, source)
    return batch


def answered(batch: Batch, groups: int) -> list[tuple[dict, bytes]]:
    """What the helper has made, once it has answered so often."""
    assert batch._reader is not None
    for _ in range(6000):
        if len(batch._done) == groups or not batch._reader.is_alive():
            break
        time.sleep(0.01)
    return list(batch._done)


def test_quick_units_are_in_groups_of_their_own():
    """How a unit is compiled does not depend on its neighbours."""
    assert QUICK == llvm_emit.QUICK
    units = {key: (entries, f"{QUICK}\n{text}" if key in ("key1", "key4") else text)
             for key, (entries, text) in sources(6).items()}
    batch = Batch(Emitter(*HOST).emit, HOST)
    try:
        with config(threads=1):
            for key, source in units.items():
                batch.add(key, source)
            groups = [list(group) for group, _ in batch.finish()]
    finally:
        batch.close()
    assert sorted(groups) == [["key0", "key2"], ["key1", "key4"], ["key3", "key5"]]


def test_the_helper_makes_the_same_objects():
    emitter = Emitter(*HOST)
    batch = filled(lambda group: pytest.fail("the helper takes the first groups"), sources(6))
    try:
        helped = answered(batch, 3)
    finally:
        batch.close()
    assert [list(group) for group, _ in helped] == [["key0", "key1"], ["key2", "key3"], ["key4", "key5"]]
    assert all(code == emitter.emit(group) for group, code in helped)


def test_what_the_helper_has_not_begun_with_is_taken_back(tmp_path, monkeypatch):
    """One that never answers has two groups; of five, this process makes the newest three and the second of those."""
    script = tmp_path / "helper.py"
    script.write_text("import sys; sys.stdin.read()")
    monkeypatch.setattr(llvm_emit, "__file__", str(script))
    batch = filled(Emitter(*HOST).emit, sources(10))
    try:
        found = [list(next(finished)[0]) for finished in [batch.finish()] for _ in range(4)]
        assert found == [["key8", "key9"], ["key6", "key7"], ["key4", "key5"], ["key2", "key3"]]
        assert [list(group) for group in batch._sent] == [["key0", "key1"]]
    finally:
        batch.close()


def test_help_gets_ready_where_many_units_are_to_come(monkeypatch):
    """Its first group may be a small one: it has nothing else to do."""
    monkeypatch.setattr(llvm_batch, "HELP_CHARS", 1 << 30)
    monkeypatch.setattr(llvm_batch, "GROUP_UNITS", 100)
    monkeypatch.setattr(llvm_batch, "FIRST_CHARS", 1)
    few = Batch(Emitter(*HOST).emit, HOST, llvm_batch.HELP_UNITS - 1)
    many = Batch(Emitter(*HOST).emit, HOST, llvm_batch.HELP_UNITS)
    try:
        assert few._helper is None and many._helper is not None and not many._sent
        for batch in (few, many):
            for key, source in sources(4).items():
                batch.add(key, source)
        assert few._filling and not few._sent and (many._sent or many._done)
        assert sorted(key for group, _ in many.finish() for key in group) == ["key0", "key1", "key2", "key3"]
    finally:
        few.close()
        many.close()


def test_every_group_comes_once():
    emitter = Emitter(*HOST)
    units = sources(9)
    batch = filled(emitter.emit, units)
    try:
        found = [key for group, code in batch.finish() for key in group if code[:4] == b"\x7fELF" or code]
    finally:
        batch.close()
    assert sorted(found) == sorted(units)


@pytest.mark.parametrize("helper", ["import sys; sys.exit(3)", "import sys; sys.stdin.read(10)", "print('e' * 90)"])
def test_a_helper_that_fails_is_done_without(tmp_path, monkeypatch, helper):
    script = tmp_path / "helper.py"
    script.write_text(helper)
    monkeypatch.setattr(llvm_emit, "__file__", str(script))
    jit = Jit()
    addresses = jit.addresses([Unit((f"k{i}",), increment(f"k{i}", 20 + i).source) for i in range(7)])
    assert len(set(addresses)) == 7 and jit.compiled == 7


def test_no_helper_at_all(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert len(Jit().addresses([Unit((f"k{i}",), increment(f"k{i}", 30 + i).source) for i in range(5)])) == 5


def test_an_error_names_its_source():
    good = [Unit((f"k{i}",), increment(f"k{i}", 40 + i).source) for i in range(6)]
    bad = Unit(("broken",), "define void @broken() {\n  %x = add i32 1, %nothing\n  ret void\n}\n")
    with pytest.raises(CompileError, match="LLVM refused the program") as caught:
        Jit().addresses([*good[:1], bad, *good[1:]])
    assert "broken" in caught.value.source


def test_rendering_that_fails_leaves_nothing_behind():
    def units():
        for i in range(4):
            yield Unit((f"k{i}",), increment(f"k{i}", 50 + i).source)
        raise KeyError("no more")

    jit = Jit()
    with pytest.raises(KeyError):
        jit.addresses(units())
    assert jit.compiled == 0 and len(jit.addresses([Unit(("k0",), increment("k0", 50).source)])) == 1
