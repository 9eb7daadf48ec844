"""Folders and files that nobody else can write: the only ones that code is taken from.

Compiled programs, plans, repacked weights and fetched models are run or computed with as they lie in the cache folder.
As ssh does with keys, a folder is used where it, every folder above it and every link on the way belong to this user or
to root, and nobody else may write them; so is a file. In a folder with the sticky bit (/tmp) others may add what is
theirs, but not replace what is not. A group that has this user's name and no other members is the user's own, as where
`umask 002` is the rule. What is not used is told on stderr, once, with the reason. Systems without such owners are not
asked (Windows).
"""
from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

try:
    import grp
    import pwd
except ImportError:  # a system without such owners
    pass

MOST_LINKS = 40
"""The links of one path that are followed, as by the system."""

_has_owners = hasattr(os, "geteuid")
_usable: dict[tuple[str, int], bool] = {}
"""By folder and user, of folders that are there."""


def is_own(folder: str | Path) -> bool:
    """True where a folder is used, or would be once it is made. Else says why not, the first time."""
    if not _has_owners:
        return True
    key = os.fspath(folder), os.geteuid()
    found = _usable.get(key)
    if found is None:
        problem = problem_of(key[0])
        found = problem is None
        if problem is not None:
            _tell(key[0], problem)
        if problem is not None or os.path.isdir(key[0]):
            _usable[key] = found
    return found


def problem_of(folder: str) -> str | None:
    """A sentence that says why a folder is not used; None where it is."""
    if not _has_owners:
        return None
    try:
        way = [*_on_the_way(os.path.abspath(folder))]
        for k, path in enumerate(way, 1):
            found = _problem(path, os.lstat(path), k == len(way))
            if found is not None:
                return found
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{folder} cannot be looked at: {error.strerror or error}"
    return None


def _on_the_way(path: str) -> Iterator[str]:
    """Every folder and link that the system goes through to get to a path, and that itself."""
    at, rest, links = os.path.splitdrive(path)[0] + os.sep, path.split(os.sep)[::-1], 0
    yield at
    while rest:
        part = rest.pop()
        if part in ("", "."):
            continue
        at = os.path.dirname(at) if part == ".." else os.path.join(at, part)
        yield at
        if os.path.islink(at):
            links += 1
            if links > MOST_LINKS:
                raise OSError(f"more than {MOST_LINKS} links")
            target = os.readlink(at)
            rest += target.split(os.sep)[::-1]
            at = os.sep if os.path.isabs(target) else os.path.dirname(at)


def _problem(path: str, status: os.stat_result, last: bool) -> str | None:
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to {_user(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode) or (status.st_mode & stat.S_ISVTX and not last):
        return None
    if status.st_mode & stat.S_IWOTH:
        return f"anybody may write {path}"
    if status.st_mode & stat.S_IWGRP and not _is_alone(status.st_gid, os.geteuid()):
        return f"its group may write {path}"
    return None


def _user(number: int) -> str:
    with suppress(KeyError):
        return f"the user {pwd.getpwuid(number).pw_name}"
    return f"the user {number}"


@lru_cache(maxsize=64)
def _is_alone(group: int, user: int) -> bool:
    """True for the group that a user has for himself."""
    with suppress(KeyError):
        name, found = pwd.getpwuid(user), grp.getgrgid(group)
        return name.pw_gid == group and found.gr_name == name.pw_name and set(found.gr_mem) <= {name.pw_name}
    return False


_told: set[str] = set()


def _tell(path: str, problem: str) -> None:
    if problem not in _told:
        _told.add(problem)
        print(f"[cache] {path} is not used, as what is in it runs here: {problem}; `chmod go-w` or chown it, set "
              "MINIGRAD_CACHE to a folder of your own, or MINIGRAD_DISK_CACHE=0", file=sys.stderr)


def open_own(path: str | Path) -> BinaryIO:
    """A file of an own folder, for reading. Raises OSError where there is none, and for a link or a file that others
    own or may write, which is told once."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
                     | getattr(os, "O_CLOEXEC", 0))
    try:
        status = os.fstat(number)
        problem = _problem(os.fspath(path), status, True) if _has_owners else None
        if problem is not None:
            _tell(os.fspath(path), problem)
            raise PermissionError(problem)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(f"{path} is no file")
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def make_own(folder: str | Path) -> None:
    """Makes a folder, and those above it that are missing, which this user alone may enter. Raises OSError, also for
    one that is there and is not used."""
    if not is_own(folder):
        raise PermissionError(f"{folder} is not used")
    path = Path(folder)
    for missing in reversed([p for p in (path, *path.parents) if not p.exists()]):
        with suppress(FileExistsError):
            missing.mkdir(mode=0o700)
    if not is_own(folder):  # somebody else was faster
        raise PermissionError(f"{folder} is not used")
