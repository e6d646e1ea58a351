"""Trees of files as tar archives, in and out."""

from __future__ import annotations

import os
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import IO

from .errors import CasemateError

_IN_MEMORY = 16 << 20
PIECE = 1 << 16
_INCOMPLETE = "what came before it has been unpacked"


def spool() -> IO[bytes]:
    """Room for an archive on its way."""
    return tempfile.SpooledTemporaryFile(_IN_MEMORY)


def pack(tree: str | os.PathLike[str]) -> IO[bytes]:
    """Files and directories below `tree`. Anything else has no meaning in a sandbox."""
    if not Path(tree).is_dir():
        raise CasemateError(f"{os.fspath(tree)} is not a directory", "write a single file with `write`")
    packed = spool()
    try:
        # A file with two names is two files.
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, dereference=True) as archive:
            for path in sorted(Path(tree).rglob("*")):
                if path.is_symlink() or not (path.is_dir() or path.is_file()):
                    raise CasemateError(
                        f"{path} is neither a file nor a directory", "leave it out, or upload what it leads to"
                    )
                archive.add(path, path.relative_to(tree).as_posix(), recursive=False, filter=_plain)
    except BaseException:
        packed.close()
        raise
    packed.seek(0)
    return packed


def unpack(packed: IO[bytes], tree: str | os.PathLike[str]) -> None:
    """Into a directory that is made, or is there. Whoever made the archive may be hostile: it only gets new files below `tree`."""
    root = Path(tree)
    root.mkdir(parents=True, exist_ok=True)
    packed.seek(0)
    try:
        with tarfile.open(fileobj=packed, mode="r|") as archive:
            for member in archive:
                _unpack_one(archive, member, root)
    except tarfile.TarError as error:
        raise CasemateError(f"the archive is broken: {error}", _INCOMPLETE) from error


def _unpack_one(archive: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    place = root.joinpath(*_parts(member.name))
    _check_above(root, place)
    if member.isdir():
        place.mkdir(parents=True, exist_ok=True)
    elif member.isfile() and (content := archive.extractfile(member)) is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        _write(place, content, member.mode)
    else:
        raise _bad(member.name, "is neither a file nor a directory")


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Who owns it here is nobody's business there."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode &= 0o777
    return member


def _parts(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise _bad(name, "leads out of the directory")
    return path.parts


def _check_above(root: Path, place: Path) -> None:
    """No link on the way: not even one that was there before."""
    while place != root:
        place = place.parent
        if place != root and place.is_symlink():
            raise _bad(str(place), "is a link")


def _write(place: Path, content: IO[bytes], mode: int) -> None:
    place.unlink(missing_ok=True)
    # Neither set-user-id nor unreadable for whoever asked for it.
    rights = (mode & 0o755) | 0o600
    # Exclusively: what somebody puts there meanwhile is not followed.
    with open(place, "xb", opener=lambda path, flags: os.open(path, flags, rights)) as file:
        while piece := content.read(PIECE):
            file.write(piece)


def _bad(name: str, why: str) -> CasemateError:
    return CasemateError(f"{name!r} in the archive {why}", _INCOMPLETE)
