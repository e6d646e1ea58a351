"""Directories that outlive sandboxes."""

import pytest

import casemate


def test_what_one_sandbox_leaves_the_next_one_finds(client):
    with casemate.Sandbox(client=client, volumes={"/work/kept": "data"}) as box:
        box.files.write("/work/kept/x", "one")
    with casemate.Sandbox(client=client, volumes={"/tmp/copy": {"name": "data", "keep": False}}) as box:
        assert box.files.read("/tmp/copy/x") == "one"
        box.files.write("/tmp/copy/x", "two")
    with casemate.Sandbox(client=client, volumes={"/work/kept": "data"}) as box:
        assert box.files.read("/work/kept/x") == "one"
        with pytest.raises(casemate.Conflict) as refused:
            casemate.Sandbox(client=client, volumes={"/work/kept": "data"})
        assert refused.value.code == "in-use"
