"""Code that remembers what ran before it, on a real server."""

import asyncio

import pytest

import casemate


def test_what_was_defined_stays_defined(box):
    first = box.run_code("import math\nx = 20", check=True)
    assert (first.text, first.stdout, first.error) == (None, "", None)
    second = box.run_code("print('out')\nx + math.floor(1.9)")
    assert (second.text, second.stdout) == ("21", "out\n")
    assert second.execution_count == first.execution_count + 1


def test_contexts_do_not_know_each_other(box):
    python = box.run_code("x = 1")
    assert box.run_code("x", context=python.context).text == "1"
    script = box.run_code("const x = 2; x + 1", language="javascript")
    assert script.text == "3" and script.context != python.context
    assert box.run_code("x", context=python.context).text == "1"


def test_contexts_are_made_and_forgotten(box):
    made = box.contexts.create(language="python", cwd="/tmp")
    assert (made.language, made.cwd) == ("python", "/tmp")
    assert box.run_code("import os; x = 1; os.getcwd()", context=made.id).text == "'/tmp'"
    assert box.contexts.restart(made.id).id == made.id
    assert box.run_code("x", context=made.id).error.name == "NameError"
    assert made.id in [context.id for context in box.contexts.list()]
    box.contexts.remove(made.id)
    with pytest.raises(casemate.NotFound):
        box.run_code("x", context=made.id)


def test_what_takes_too_long_is_interrupted_and_nothing_is_forgotten(box):
    box.run_code("x = 7")
    late = box.run_code("import time\ntime.sleep(600)", timeout=0.5)
    assert late.error is not None
    assert box.run_code("x").text == "7"


def test_errors_are_told_and_forgiven(box):
    box.run_code("def f():\n    raise ValueError('no')")
    failed = box.run_code("f()")
    assert (failed.error.name, failed.error.value) == ("ValueError", "no")
    assert "in f" in failed.error.traceback
    with pytest.raises(casemate.CodeFailed, match="ValueError: no"):
        box.run_code("f()", check=True)
    assert box.run_code("1 + 1").text == "2"


def test_pictures_come_out(box):
    shown = box.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2, 1])\nplt.show()", timeout=120)
    (picture,) = [result.png for result in shown.results if result.png is not None]
    assert picture.startswith(b"\x89PNG\r\n")


def test_output_is_told_while_it_runs(box):
    heard, shown = [], []
    code = "import sys, time\nprint('a', flush=True)\ntime.sleep(0.5)\nprint('b', file=sys.stderr, flush=True)\n6 * 7"
    result = box.run_code(code, on_stdout=heard.append, on_stderr=heard.append, on_result=shown.append)
    assert "".join(heard) == "a\nb\n" and [one.text for one in shown] == ["42"]
    assert (result.stdout, result.stderr, result.text) == ("a\n", "b\n", "42")


def test_awaited(server):
    async def run():
        async with casemate.AsyncSandbox(server=server.url) as box:
            await box.run_code("x = 6")
            heard = []

            async def hear(text):
                heard.append(text)

            result = await box.run_code("print(x)\nx * 7", on_stdout=hear)
            return result.text, heard

    assert asyncio.run(run()) == ("42", ["6\n"])
