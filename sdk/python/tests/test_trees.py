"""Trees of files into a sandbox of a real server, and out again."""

import asyncio

import pytest

import casemate


@pytest.fixture
def tree(tmp_path):
    tree = tmp_path / "tree"
    (tree / "sub/empty").mkdir(parents=True)
    (tree / "sub/run").write_text("#!/bin/sh\necho ran\n")
    (tree / "sub/run").chmod(0o755)
    (tree / "bytes").write_bytes(bytes(range(256)) * 4096)
    return tree


def contents(place) -> dict[str, tuple[bytes | None, int]]:
    return {
        path.relative_to(place).as_posix(): (path.read_bytes() if path.is_file() else None, path.stat().st_mode & 0o777)
        for path in place.rglob("*")
    }


def test_a_tree_goes_in_and_comes_out(box, tree, tmp_path):
    box.files.upload(tree, "/work/project")
    assert box.commands.run("./sub/run; ls -d sub/empty", cwd="/work/project").stdout == "ran\nsub/empty\n"
    box.commands.run("echo more > /work/project/made", check=True)
    box.files.download("/work/project", tmp_path / "out")
    found = contents(tmp_path / "out")
    assert found.pop("made")[0] == b"more\n" and found == contents(tree)


def test_awaited(server, tree, tmp_path):
    async def travel():
        async with casemate.AsyncSandbox(server=server.url) as box:
            await box.files.upload(tree)
            await box.files.download("/work", tmp_path / "out")

    asyncio.run(travel())
    assert contents(tmp_path / "out") == contents(tree)


def test_links_and_devices_of_a_sandbox_stay_there(box, tmp_path):
    box.commands.run("mkdir d; echo x > d/file; ln -s /etc/passwd d/link; mkfifo d/pipe", check=True)
    box.files.download("/work/d", tmp_path / "out")
    assert set(contents(tmp_path / "out")) == {"file"}


def test_what_is_not_there_cannot_come(box, tmp_path):
    with pytest.raises(casemate.NotFound):
        box.files.download("/work/missing", tmp_path / "out")
    assert not (tmp_path / "out").exists()
