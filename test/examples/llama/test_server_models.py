"""Models of a server by name: loaded when they are asked for, and unloaded for others within a budget."""
from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic", reason="the server needs pydantic")

from examples.llama.memory import TooLarge
from examples.llama.server.errors import ApiError
from examples.llama.server.models import Loaded, Models, check_budget
from minigrad.errors import FormatError

SIZES = {"a": 40, "b": 50, "c": 60}


class Home:
    """Stands for models of these sizes; `events` is what happened to them."""

    def __init__(self, folder: Path):
        self.events: list[str] = []
        self.paths = {name: folder / name for name in SIZES}
        self.wait = threading.Event()
        self.wait.set()
        for path in self.paths.values():
            path.touch()

    def make(self, name: str, path: Path) -> Loaded:
        self.wait.wait()
        if path.name in self.events:
            raise FormatError(f"{path}: is broken")
        self.events.append(f"load {path.name}")
        return Loaded(None, None, _Engine(self, path.name), 0)  # type: ignore[arg-type]

    def models(self, budget: int | None = 100) -> Models:
        return Models(self.paths, self.make, lambda path: SIZES[path.name], budget)


class _Engine:
    context = 8

    def __init__(self, home: Home, name: str):
        self.home, self.name = home, name

    def close(self, seconds: float) -> None:
        self.home.events.append(f"close {self.name}")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def run(work: Callable[[], Awaitable[Any]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(20):
            await work()
    asyncio.run(in_time())


def test_the_least_recently_used_makes_room(home: Home) -> None:
    async def work() -> None:
        models = home.models()
        for name in ("a", "b", "a:latest", "c", "a"):
            async with models.use(name):
                pass
        await models.close(0)
    run(work)
    assert home.events[:4] == ["load a", "load b", "close b", "load c"]  # which fits beside a
    assert sorted(home.events[4:]) == ["close a", "close c"]


def test_one_that_is_used_stays(home: Home) -> None:
    async def work() -> None:
        models = home.models()
        async with models.use("b"):
            with pytest.raises(ApiError, match="the model c has no room beside those that answer") as caught:
                async with models.use("c"):
                    pass
            assert caught.value.status == 503 and caught.value.headers["Retry-After"]
        async with models.use("c"):
            pass
    run(work)
    assert home.events == ["load b", "close b", "load c"]


def test_it_is_loaded_once_for_all_who_wait(home: Home) -> None:
    async def work() -> None:
        models = home.models()
        home.wait.clear()

        async def use() -> Loaded:
            async with models.use("a") as loaded:
                return loaded
        tasks = [asyncio.create_task(use()) for _ in range(5)]
        await asyncio.sleep(0.01)
        tasks[0].cancel()  # whose client has gone; the others still get it
        home.wait.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError) and len({id(each) for each in found[1:]}) == 1
        assert models.entries["a"].users == 0
    run(work)
    assert home.events == ["load a"]


def test_what_cannot_be_loaded_is_an_error_without_its_path(home: Home) -> None:
    async def work() -> None:
        models = home.models(None)
        home.events.append("a")
        for _ in range(2):  # it is tried again
            with pytest.raises(ApiError, match=r"^the model a cannot be loaded: a: is broken$") as caught:
                async with models.use("a"):
                    pass
            assert caught.value.status == 503
        with pytest.raises(ApiError, match="there is no model 'd'; there are a, b, c"):
            models.find("d")
    run(work)


def test_a_model_that_never_fits_is_refused_at_once(home: Home) -> None:
    check_budget(home.models().entries, 60)
    check_budget(home.models().entries, None)
    with pytest.raises(TooLarge, match="the model c does not fit"):
        check_budget(home.models().entries, 59)
