"""The package is typed, and for those who use it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

USE = """
import casemate

def use(box: casemate.Sandbox) -> None:
    reveal_type(box.commands.run("true"))
    reveal_type(box.commands.run("true", background=True))
    reveal_type(box.files.list())
    reveal_type(casemate.run(code="1", limits={"pids": 4}))

async def awaited(box: casemate.AsyncSandbox) -> None:
    reveal_type(await box.commands.run("true"))
    reveal_type(await box.commands.run("true", background=True))
    casemate.run("true", colour="red")
    box.commands.run("true", background=True, check=True)
"""


def mypy(*words: str, cwd: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-B", "-m", "mypy", "--cache-dir=/dev/null", *words], cwd=cwd, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def test_it_is_typed_strictly():
    status, said = mypy(cwd=ROOT)
    assert status == 0, said


def test_its_users_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    (tmp_path / "use.py").write_text(USE)
    status, said = mypy("--strict", "use.py", cwd=tmp_path)
    told = [line.split('"')[1] for line in said.splitlines() if "Revealed type" in line]
    assert told == [
        "casemate.results.Result",
        "casemate.sandbox.Process",
        "list[casemate.results.FileInfo]",
        "casemate.results.Result",
        "casemate.results.Result",
        "casemate.aio.sandbox.AsyncProcess",
    ]
    errors = [line for line in said.splitlines() if ": error:" in line]
    assert status == 1 and len(errors) == 2 and 'argument "colour"' in errors[0] and "No overload" in errors[1], said
