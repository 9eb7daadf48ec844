"""Which pages of the cache hold which tokens: taken, shared by conversations that begin alike, and given back.

A page that is full is known by the tokens in it and the page before it. It stays known when nobody uses it any more,
until its place is needed: those unused for longest go first, of one conversation the last ones.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import count

from examples.llama.server.paged import PAGE

Key = tuple[int, tuple[int, ...]]
"""(serial number of the page before, tokens)."""

START = 0
"""Serial number of what is before the first page."""


class PageTable:
    """The use of so many pages."""

    def __init__(self, pages: int):
        self.capacity = pages
        self._free = list(range(pages))[::-1]
        self._users = [0] * pages
        self._known: dict[Key, int] = {}
        self._key: dict[int, Key] = {}
        self._serial = dict[int, int]()
        self._serials = count(START + 1)
        self._unused: OrderedDict[int, None] = OrderedDict()  # known pages without users, the oldest first

    @property
    def available(self) -> int:
        """Pages that can be taken."""
        return len(self._free) + len(self._unused)

    @property
    def in_use(self) -> int:
        """Pages of conversations that run."""
        return self.capacity - self.available

    @property
    def held(self) -> int:
        """Pages that hold something, in use or not."""
        return self.capacity - len(self._free)

    def serial(self, page: int) -> int:
        """The number of a known page, which no other content ever has."""
        return self._serial[page]

    def find(self, tokens: Sequence[int], most: int) -> list[int]:
        """The pages, at most so many, that hold the start of some tokens; nothing is taken."""
        found: list[int] = []
        before = START
        while len(found) < most and (len(found) + 1) * PAGE <= len(tokens):
            page = self._known.get((before, tuple(tokens[len(found) * PAGE:(len(found) + 1) * PAGE])))
            if page is None:
                break
            found.append(page)
            before = self._serial[page]
        return found

    def is_unused(self, page: int) -> bool:
        """True where nobody uses a known page, so that it counts as available."""
        return page in self._unused

    def share(self, pages: Sequence[int]) -> None:
        """Counts one more user of known pages."""
        for page in pages:
            self._unused.pop(page, None)
            self._users[page] += 1

    def take(self) -> int | None:
        """A page for one user; None where all are in use."""
        if self._free:
            page = self._free.pop()
        elif self._unused:
            page, _ = self._unused.popitem(last=False)
            self._forget(page)
        else:
            return None
        self._users[page] = 1
        return page

    def know(self, page: int, before: int | None, tokens: Sequence[int]) -> int:
        """Makes a full page of a user known, behind the known page `before` (None: it is the first). Where there is one
        that holds the same already, the user has that one from now on, and this one is given back."""
        key = START if before is None else self._serial[before], tuple(tokens)
        other = self._known.get(key)
        if other is None:
            self._known[key], self._key[page], self._serial[page] = page, key, next(self._serials)
            return page
        self.share([other])
        self.give_back([page])
        return other

    def give_back(self, pages: Sequence[int]) -> None:
        """Counts one user less of the pages of a conversation, in order."""
        for page in reversed(pages):
            self._users[page] -= 1
            if self._users[page]:
                continue
            if page in self._key:
                self._unused[page] = None
            else:
                self._free.append(page)

    def _forget(self, page: int) -> None:
        del self._known[self._key.pop(page)], self._serial[page]

    # ---- to keep and to take up ----

    def known(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Known pages: (page, the page before or -1, tokens), such that one comes after the one before it."""
        place = {serial: page for page, serial in self._serial.items()}
        found = [(page, place.get(before, -1), tokens) for page, (before, tokens) in self._key.items()
                 if before == START or before in place]
        return sorted(found, key=lambda item: self._serial[item[0]])

    def restore(self, before: int | None, tokens: Sequence[int]) -> int | None:
        """A page without users that is known from now on; None where there is no room."""
        if not self._free:
            return None
        page = self._free.pop()
        self._users[page] = 1
        kept = self.know(page, before, tokens)
        self.give_back([kept])
        return kept
