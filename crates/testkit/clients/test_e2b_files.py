"""Files with the unmodified packages of E2B."""

import io
import time

import httpx
import pytest
from e2b import FileNotFoundException, FileType, FilesystemEventType, InvalidArgumentException, NotEnoughSpaceException, Sandbox, SandboxException


@pytest.fixture
def sandbox(e2b):
    return Sandbox.create(timeout=120)


def test_text_bytes_and_streams_come_back_as_they_went(sandbox):
    files = sandbox.files
    written = files.write("notes/tëxt.txt", "grüße\n")
    assert (written.name, written.type, written.path) == ("tëxt.txt", FileType.FILE, "/work/notes/tëxt.txt")
    assert files.read("notes/tëxt.txt") == "grüße\n"
    assert files.read("/home/user/notes/tëxt.txt") == files.read("/work/notes/tëxt.txt")
    data = bytes(range(256)) * 20_000
    files.write("/tmp/data", data)
    assert files.read("/tmp/data", format="bytes") == data
    assert b"".join(files.read("/tmp/data", format="stream")) == data
    assert files.read("/tmp/data", format="bytes", gzip=True) == data
    files.write("/tmp/streamed", io.BytesIO(data))
    files.write("/tmp/octets", data, use_octet_stream=True)
    assert sandbox.commands.run("cd /tmp; cat streamed octets | sha256sum; cat data data | sha256sum").stdout.split("\n")[0] == (
        sandbox.commands.run("cat /tmp/data /tmp/data | sha256sum").stdout.strip()
    )
    files.write("notes/tëxt.txt", "")
    assert files.read("notes/tëxt.txt") == ""


def test_many_files_are_written_at_once(sandbox):
    entries = [{"path": f"many/{n} \"quoted\".txt", "data": f"number {n}\r\n--" * n} for n in range(20)]
    written = sandbox.files.write_files(entries)
    assert [each.path for each in written] == [f"/work/{each['path']}" for each in entries]
    for each in entries:
        assert sandbox.files.read(each["path"]) == each["data"]
    assert sandbox.files.write_files([]) == []


def test_directories_are_made_listed_and_removed(sandbox):
    files = sandbox.files
    assert files.make_dir("a/b/c")
    assert not files.make_dir("a/b/c"), "it is there"
    files.write("a/one", "1")
    files.write("a/b/two", "22")
    sandbox.commands.run("ln -s one a/link; chmod 750 a/one")
    listed = {each.path: each for each in files.list("a")}
    assert sorted(listed) == ["/work/a/b", "/work/a/link", "/work/a/one"]
    one = listed["/work/a/one"]
    assert (one.name, one.type, one.size, one.permissions, one.mode) == ("one", FileType.FILE, 1, "rwxr-x---", 0o750)
    assert abs(one.modified_time.timestamp() - time.time()) < 60
    assert (listed["/work/a/b"].type, listed["/work/a/link"].type) == (FileType.DIR, FileType.SYMLINK)
    assert sorted(each.path for each in files.list("a", depth=2)) == [
        "/work/a/b", "/work/a/b/c", "/work/a/b/two", "/work/a/link", "/work/a/one",
    ]
    with pytest.raises(FileNotFoundException):
        files.list("nowhere")
    with pytest.raises(InvalidArgumentException, match="not a directory"):
        files.list("a/one")
    files.remove("a")
    assert not files.exists("a")
    files.remove("a")


def test_files_are_looked_at_and_renamed(sandbox):
    files = sandbox.files
    files.write("old", "content")
    assert files.exists("old") and not files.exists("new/er")
    assert files.get_info("old").size == 7
    moved = files.rename("old", "new/er")
    assert (moved.path, moved.size) == ("/work/new/er", 7)
    assert files.read("new/er") == "content"
    for attempt in [
        lambda: files.read("old"),
        lambda: files.get_info("old"),
        lambda: files.rename("old", "else"),
    ]:
        with pytest.raises(FileNotFoundException):
            attempt()
    with pytest.raises(InvalidArgumentException, match="directory"):
        files.read("new")


def test_changes_are_told(sandbox):
    files = sandbox.files
    files.make_dir("watched/below")
    plain = files.watch_dir("watched")
    deep = files.watch_dir("watched", recursive=True, include_entry=True)
    files.write("watched/file", "x")
    files.write("watched/below/file", "yy")
    files.remove("watched/file")
    seen, told, deadline = [], [], time.monotonic() + 10
    while not any(event.type == FilesystemEventType.REMOVE for event in seen) or not any("/" in event.name for event in told):
        assert time.monotonic() < deadline, (seen, told)
        seen += plain.get_new_events()
        told += deep.get_new_events()
        time.sleep(0.02)
    kinds = {(event.name, event.type) for event in seen}
    assert {("file", FilesystemEventType.CREATE), ("file", FilesystemEventType.WRITE), ("file", FilesystemEventType.REMOVE)} <= kinds
    assert not any("/" in event.name for event in seen)
    assert [event.entry.size for event in told if event.name == "below/file" and event.entry][-1:] == [2]
    plain.stop()
    with pytest.raises(SandboxException):
        plain.get_new_events()
    with pytest.raises(FileNotFoundException):
        files.watch_dir("nowhere")


@pytest.mark.parametrize("path", ["/etc/passwd", "../etc/passwd", "/work/../etc/passwd", "/home/user/../../etc/passwd", "/proc/1/environ", "/"])
def test_nothing_else_can_be_reached(sandbox, path):
    files = sandbox.files
    for attempt in [
        lambda: files.read(path),
        lambda: files.write(path, "mine"),
        lambda: files.list(path),
        lambda: files.get_info(path),
        lambda: files.exists(path),
        lambda: files.remove(path),
        lambda: files.make_dir(path),
        lambda: files.rename(path, "here"),
        lambda: files.watch_dir(path),
    ]:
        with pytest.raises(InvalidArgumentException, match="/work"):
            attempt()


def test_links_lead_nowhere_else(sandbox):
    sandbox.commands.run("ln -s /etc/passwd file; ln -s /etc directory")
    for path in ["file", "directory/passwd"]:
        with pytest.raises(SandboxException):
            sandbox.files.read(path)


def test_what_is_not_supported_is_refused(sandbox):
    files = sandbox.files
    with pytest.raises(SandboxException, match="compressed"):
        files.write("x", "y", gzip=True)
    with pytest.raises(InvalidArgumentException, match="metadata"):
        files.write("x", "y", metadata={"a": "b"})
    with pytest.raises(InvalidArgumentException, match="root"):
        files.write("x", "y", user="root")
    with pytest.raises(InvalidArgumentException, match="root"):
        files.read("x", user="root")
    assert not files.exists("x")
    assert httpx.get(sandbox.download_url("x")).status_code == 400


def test_a_full_disk_says_so(sandbox):
    with pytest.raises(NotEnoughSpaceException):
        sandbox.files.write("large", b"x" * (80 << 20))
    sandbox.files.remove("large")
    sandbox.files.write("small", "fits")
