"""Files from the network: fetched once, going on where an earlier attempt stopped, and kept only if they are right."""
from __future__ import annotations

import hashlib
import http.client
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from minigrad.errors import FormatError

_CHUNK = 1 << 18
_PATIENCE = 30.0


@dataclass(frozen=True)
class Source:
    """Addresses of one file, asked in order, and the checksum that its publisher states: `kind` is md5 or sha256."""

    addresses: tuple[str, ...]
    kind: str
    digest: str


def fetch(source: Source, target: Path) -> Path:
    """Downloads a file to `target`, unless it is there, with progress on stderr where that is a terminal.

    What came before a connection broke stays in `target`.part, and the next attempt asks for the rest. Raises
    FormatError where no address has the file, or it has another checksum: then nothing is kept.
    """
    if target.is_file():
        return target
    part = target.with_name(f"{target.name}.part")
    problems = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for address in source.addresses:
            try:
                _download(address, part)
            except (URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
                problems.append(f"{urlsplit(address).netloc} says {_reason(error)}")
                continue
            if (got := _digest(part, source.kind)) == source.digest:
                part.replace(target)
                return target
            part.unlink()
            problems.append(f"{urlsplit(address).netloc} has another file of that name, with {source.kind} {got} "
                            f"instead of {source.digest}, which was not kept")
    except OSError as error:
        raise FormatError(f"cannot write {target}: {error.strerror or error}") from None
    raise FormatError(f"cannot fetch {target.name}: {'; '.join(problems)}; a file of that name in {target.parent} "
                      "is used as it is")


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"{error.code} {error.reason}"
    return str(error.reason if isinstance(error, URLError) else error) or type(error).__name__


def _download(address: str, part: Path) -> None:
    """Appends to `part` what is not in it yet; all of it anew where the server cannot give a part."""
    from tqdm.auto import tqdm

    have = part.stat().st_size if part.exists() else 0
    request = Request(address, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urlopen(request, timeout=_PATIENCE)
    except HTTPError as error:
        if error.code == 416 and have:  # it asks for more than there is: the file is whole, or another one
            return
        raise
    with answer:
        start = have if answer.status == 206 else 0
        size = answer.headers.get("Content-Length")
        total = None if size is None else start + int(size)
        with open(part, "ab" if start else "wb") as out, tqdm(
                total=total, initial=start, unit="B", unit_scale=True, desc=part.stem, disable=None, leave=False,
                file=sys.stderr) as bar:
            for chunk in _chunks(answer):
                out.write(chunk)
                bar.update(len(chunk))
            if total is not None and out.tell() < total:
                raise ConnectionError(f"the connection ended after {out.tell()} of {total} bytes; the next attempt "
                                      "goes on from there")


def _chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while chunk := answer.read(_CHUNK):
        yield chunk


def _digest(path: Path, kind: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()
