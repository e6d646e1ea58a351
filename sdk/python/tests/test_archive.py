"""Trees of files, of which somebody hostile may have made the archive."""

import asyncio
import io
import os
import tarfile

import pytest
from stub import OPENED, serving

import casemate
from casemate import _archive


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return made.getvalue()


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, **fields) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.type = kind
    for field, value in fields.items():
        setattr(made, field, value)
    return made, content


def unpack(packed: bytes, tree) -> None:
    _archive.unpack(io.BytesIO(packed), tree)


def tree_of(place) -> dict[str, bytes | None]:
    return {
        path.relative_to(place).as_posix(): path.read_bytes() if path.is_file() else None for path in place.rglob("*")
    }


def test_what_was_packed_is_unpacked(tmp_path):
    tree = tmp_path / "tree"
    (tree / "sub/empty").mkdir(parents=True)
    (tree / "sub/run").write_bytes(b"#!/bin/sh\n")
    (tree / "sub/run").chmod(0o4755)
    (tree / "again").hardlink_to(tree / "sub/run")
    (tree / ("long" * 40)).write_bytes(bytes(range(256)) * 1000)
    with _archive.pack(tree) as packed:
        with tarfile.open(fileobj=packed) as tar:
            assert all(entry.isfile() or entry.isdir() for entry in tar)
            assert {(entry.uid, entry.gid, entry.uname, entry.gname) for entry in tar} == {(0, 0, "", "")}
        _archive.unpack(packed, tmp_path / "again")
    assert tree_of(tmp_path / "again") == tree_of(tree)
    assert (tmp_path / "again/sub/run").stat().st_mode & 0o7777 == 0o755


def test_only_trees_are_packed(tmp_path):
    with pytest.raises(casemate.CasemateError, match="not a directory"):
        _archive.pack(tmp_path / "missing")
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(casemate.CasemateError, match="neither a file nor a directory"):
        _archive.pack(tmp_path)


@pytest.mark.parametrize(
    "hostile",
    [
        [member("../out", b"x")],
        [member("/tmp/casemate-archive-test", b"x")],
        [member("a/../../out", b"x")],
        [member("link", kind=tarfile.SYMTYPE, linkname="/etc")],
        [member("link", kind=tarfile.LNKTYPE, linkname="/etc/passwd")],
        [member("device", kind=tarfile.CHRTYPE, devmajor=1, devminor=3)],
        [member("pipe", kind=tarfile.FIFOTYPE)],
    ],
    ids=lambda members: members[0][0].name,
)
def test_nothing_gets_out_of_the_directory(tmp_path, hostile):
    place = tmp_path / "place"
    with pytest.raises(casemate.CasemateError, match="in the archive"):
        unpack(archive(member("first", b"1"), *hostile), place)
    assert tree_of(tmp_path) == {"place": None, "place/first": b"1"}
    assert not os.path.exists("/tmp/casemate-archive-test")


def test_links_that_were_there_before_lead_nowhere(tmp_path):
    outside, place = tmp_path / "outside", tmp_path / "place"
    outside.mkdir()
    place.mkdir()
    (outside / "kept").write_bytes(b"old")
    (place / "directory").symlink_to(outside)
    with pytest.raises(casemate.CasemateError, match="is a link"):
        unpack(archive(member("directory/kept", b"new")), place)
    (place / "file").symlink_to(outside / "kept")
    unpack(archive(member("file", b"new")), place)
    assert (outside / "kept").read_bytes() == b"old"
    assert (place / "file").read_bytes() == b"new" and not (place / "file").is_symlink()


def test_rights_are_plain(tmp_path):
    unpack(
        archive(member("all", b"", mode=0o7777), member("none", b"", mode=0), member("x", b"", mode=0o111)), tmp_path
    )
    modes = {path.name: path.stat().st_mode & 0o7777 for path in tmp_path.iterdir()}
    assert modes == {"all": 0o755, "none": 0o600, "x": 0o711}


@pytest.mark.parametrize("broken", [b"x" * 2000, archive(member("a", b"x" * 5000))[:3000]])
def test_broken_archives_are_told(tmp_path, broken):
    with pytest.raises(casemate.CasemateError, match="broken"):
        unpack(broken, tmp_path)


def test_trees_travel(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_bytes(b"content")
    sent = (200, {"content-type": "application/x-tar"}, archive(member("file", b"came")))
    with serving(OPENED, (204, {}, b""), sent) as (url, asked), casemate.Client(url) as client:
        box = casemate.Sandbox(client=client)
        box.files.upload(tmp_path / "tree", "/work/to")
        box.files.download("/work/from", tmp_path / "got")
    assert tree_of(tmp_path / "got") == {"file": b"came"}
    _, put, got = asked
    assert (put.method, put.path) == ("PUT", "/v1/sessions/s1/files/archive?path=%2Fwork%2Fto")
    assert (got.method, got.path) == ("GET", "/v1/sessions/s1/files/archive?path=%2Fwork%2Ffrom")
    unpack(put.body, tmp_path / "arrived")
    assert tree_of(tmp_path / "arrived") == {"file": b"content"}

    async def awaited(url):
        async with casemate.AsyncClient(url) as client:
            box = await casemate.AsyncSandbox(client=client)
            await box.files.upload(tmp_path / "tree")
            await box.files.download("/work", tmp_path / "awaited")

    with serving(OPENED, (204, {}, b""), sent) as (url, asked):
        asyncio.run(awaited(url))
    assert tree_of(tmp_path / "awaited") == {"file": b"came"} and asked[1].path.endswith("=%2Fwork")
