"""Code that keeps what it defines, with the unmodified code interpreter package of E2B."""

import base64
import json
import threading
import time

import httpx
import pytest
from e2b import NotFoundException, TimeoutException
from e2b_code_interpreter import Sandbox


@pytest.fixture
def sandbox(e2b):
    return Sandbox.create(timeout=120)


def test_what_is_defined_stays(sandbox):
    assert sandbox.run_code("import math\nx = 20\ndef twice(n): return 2 * n").results == []
    execution = sandbox.run_code("twice(x) + math.floor(2.5)")
    assert (execution.text, execution.execution_count) == ("42", 2)
    assert execution.results[0].is_main_result
    assert sandbox.run_code("_ + 1").text == "43"
    assert sandbox.run_code("x;").results == [], "a semicolon hides it"
    sandbox.files.write("helper.py", "def ask(): return 'from a file'")
    assert sandbox.run_code("import helper; helper.ask()").text == "'from a file'"


def test_output_comes_as_it_is_written(sandbox):
    heard = []
    code = """
import os, subprocess, sys, time
print("one")
time.sleep(0.4)
print("two", file=sys.stderr)
time.sleep(0.4)
subprocess.run(["echo", "three"])
os.system("echo four >&2")
print("fünf", end="")
"""
    note = lambda message: heard.append((time.monotonic(), message.error, message.line))
    execution = sandbox.run_code(code, on_stdout=note, on_stderr=note)
    assert "".join(execution.logs.stdout) == "one\nthree\nfünf"
    assert "".join(execution.logs.stderr) == "two\nfour\n"
    assert [heard[0][1:], heard[1][1:]] == [(False, "one\n"), (True, "two\n")]
    assert heard[-1][0] - heard[0][0] > 0.6, "it did not wait for the end"


def test_much_output_comes_whole_and_in_order(sandbox):
    execution = sandbox.run_code("for n in range(200_000): print(n)")
    assert "".join(execution.logs.stdout) == "".join(f"{n}\n" for n in range(200_000))
    assert sandbox.run_code("1 + 1").text == "2"


def test_errors_show_the_lines_of_the_code_and_nothing_of_ours(sandbox):
    heard = []
    execution = sandbox.run_code("def deep():\n    raise ValueError('no good')\n\nprint('before')\ndeep()", on_error=heard.append)
    error = execution.error
    assert (error.name, error.value) == ("ValueError", "no good") and heard == [error]
    assert "line 5, in <module>\n    deep()" in error.traceback
    assert "line 2, in deep\n    raise ValueError('no good')" in error.traceback
    assert "casemate" not in error.traceback and "ast.py" not in error.traceback
    assert execution.logs.stdout == ["before\n"] and execution.text is None
    assert "was never closed" in sandbox.run_code("x = (").error.value
    assert sandbox.run_code("import sys; sys.exit(3)").error.name == "SystemExit"
    chained = sandbox.run_code("try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('k') from e").error.traceback
    assert "direct cause" in chained and "1 / 0" in chained and "casemate" not in chained
    assert sandbox.run_code("'still here'").text == "'still here'"


def test_await_works_at_the_top(sandbox):
    sandbox.run_code("import asyncio\nasync def later(n):\n    await asyncio.sleep(0.01)\n    return n")
    assert sandbox.run_code("await later(5)").text == "5"
    assert sandbox.run_code("a, b = await asyncio.gather(later(1), later(2))\na + b").text == "3"
    assert sandbox.run_code("asyncio.run(later(7))").text == "7"


def test_results_show_themselves_in_many_ways(sandbox):
    heard = []
    code = """
class Rich:
    def __repr__(self): return "rich"
    def _repr_html_(self): return "<b>rich</b>"
    def _repr_markdown_(self): return "**rich**"
    def _repr_svg_(self): return "<svg/>"
    def _repr_latex_(self): return "$r$"
    def _repr_json_(self): return {"rich": [1, None]}
    def _repr_javascript_(self): return "rich()"
    def _repr_png_(self): return b"\\x89PNG"
    def _repr_jpeg_(self): return b"jpeg"
    def _repr_pdf_(self): return b"pdf"
    def _repr_mimebundle_(self, **_): return {"application/x-own": "own"}
display("shown")
Rich()
"""
    execution = sandbox.run_code(code, on_result=heard.append)
    shown, rich = execution.results
    assert heard == execution.results
    assert (shown.text, shown.is_main_result) == ("'shown'", False)
    assert (rich.text, rich.is_main_result, rich.html, rich.markdown, rich.svg) == ("rich", True, "<b>rich</b>", "**rich**", "<svg/>")
    assert (rich.latex, rich.json, rich.javascript) == ("$r$", {"rich": [1, None]}, "rich()")
    assert [base64.b64decode(each) for each in (rich.png, rich.jpeg, rich.pdf)] == [b"\x89PNG", b"jpeg", b"pdf"]
    assert rich.extra == {"application/x-own": "own"}
    broken = sandbox.run_code("class Broken:\n    def __repr__(self): 1 / 0\n    def _repr_html_(self): 1 / 0\nBroken()")
    assert "ZeroDivisionError" in broken.text and broken.error is None
    large = sandbox.run_code("class Large:\n    def _repr_html_(self): return 'x' * (20 << 20)\nLarge()")
    assert large.results == [] and "was left out" in "".join(large.logs.stderr)


def test_charts_come_as_images(sandbox):
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()\nprint('between')\nplt.bar([1, 2], [3, 4])"
    execution = sandbox.run_code(code)
    assert execution.error is None, execution.error.traceback
    charts = [result for result in execution.results if result.png]
    assert len(charts) == 2 and not any(chart.is_main_result for chart in charts)
    for chart in charts:
        assert base64.b64decode(chart.png).startswith(b"\x89PNG\r\n\x1a\n")
    assert charts[0].png != charts[1].png
    assert not any("non-interactive" in line for line in execution.logs.stderr)
    assert sandbox.run_code("plt.get_fignums()").text == "[]"


def test_variables_of_one_run_are_gone_after_it(sandbox):
    assert sandbox.run_code("import os; os.environ['COLOUR']", envs={"COLOUR": "blue"}).text == "'blue'"
    assert sandbox.run_code("os.environ.get('COLOUR', 'none')").text == "'none'"


def test_javascript_keeps_what_it_declares(sandbox):
    run = lambda code: sandbox.run_code(code, language="javascript")
    run("const x = 20; let words = []; function twice(n) { return 2 * n }")
    assert run("words.push('a'); twice(x) + 2").text == "42"
    assert run("const fetched = await new Promise((done) => setTimeout(() => done(5), 10)); fetched + words.length").text == "6"
    execution = run("console.log('out', { a: 1 }); console.error('err'); [1, 'two']")
    assert ("".join(execution.logs.stdout), "".join(execution.logs.stderr)) == ("out { a: 1 }\n", "err\n")
    assert execution.text == "[ 1, 'two' ]"
    error = run("function deep() { throw new TypeError('no good') }\ndeep()").error
    assert (error.name, error.value) == ("TypeError", "no good")
    assert "at deep (<cell" in error.traceback and "node:" not in error.traceback
    assert run("await Promise.reject(new RangeError('far'))").error.name == "RangeError"
    assert run("let y = (").error.name == "SyntaxError"
    shown = run("display({ [Symbol.for('Jupyter.display')]: () => ({ 'text/html': '<i>', 'application/json': { a: 1 } }) })").results[0]
    assert (shown.html, shown.json, shown.is_main_result) == ("<i>", {"a": 1}, False)
    assert run("process.env.COLOUR ?? 'none'").text == "'none'"
    assert sandbox.run_code("process.env.COLOUR", language="javascript", envs={"COLOUR": "blue"}).text == "'blue'"
    assert sandbox.run_code("'x' in dir()").text == "False", "another language is another context"


def test_contexts_are_apart_from_each_other(sandbox):
    sandbox.files.make_dir("place")
    one, two = sandbox.create_code_context(cwd="/home/user/place"), sandbox.create_code_context(language="javascript")
    assert (one.language, one.cwd, two.language, two.cwd) == ("python", "/work/place", "javascript", "/work")
    assert sandbox.run_code("import os; x = 'one'; os.getcwd()", context=one).text == "'/work/place'"
    assert sandbox.run_code("x = 'default'; x").text == "'default'"
    assert sandbox.run_code("x", context=one).text == "'one'"
    assert {context.id for context in sandbox.list_code_contexts()} > {one.id, two.id}
    sandbox.restart_code_context(one)
    assert sandbox.run_code("x", context=one).error.name == "NameError"
    assert sandbox.run_code("import os; os.getcwd()", context=one).text == "'/work/place'"
    sandbox.remove_code_context(two)
    assert two.id not in {context.id for context in sandbox.list_code_contexts()}
    for attempt in [
        lambda: sandbox.run_code("1", context=two),
        lambda: sandbox.remove_code_context(two),
        lambda: sandbox.restart_code_context(two),
    ]:
        with pytest.raises(NotFoundException):
            attempt()
    assert sandbox.commands.list() == [], "contexts are not commands"


@pytest.mark.parametrize("language", ["r", "java", "cobol"])
def test_other_languages_are_refused(sandbox, language):
    with pytest.raises(Exception, match="400.*python or javascript"):
        sandbox.run_code("1", language=language)


def test_who_hangs_up_interrupts_the_code_and_keeps_the_rest(sandbox):
    for language, define, loop, look in [
        ("python", "kept = 5", "import time\nwhile True: time.sleep(0.01)", "kept"),
        ("javascript", "var kept = 5", "while (true) {}", "kept"),
    ]:
        sandbox.run_code(define, language=language)
        with pytest.raises(TimeoutException):
            sandbox.run_code(loop, language=language, timeout=0.5)
        assert sandbox.run_code(look, language=language).text == "5", language


def test_code_that_heeds_no_interrupt_loses_its_context(sandbox):
    sandbox.run_code("kept = 5")
    with pytest.raises(TimeoutException):
        sandbox.run_code("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", timeout=0.5)
    # Who came while it was still there hears that it is gone.
    assert sandbox.run_code("kept").error.name == "ContextLost"
    assert sandbox.run_code("kept").error.name == "NameError"


def test_a_context_that_dies_is_replaced(sandbox):
    execution = sandbox.run_code("import os\nprint('last words', flush=True)\nos._exit(7)")
    assert execution.error.name == "ContextLost" and "code 7" in execution.error.value
    assert execution.logs.stdout == ["last words\n"]
    assert sandbox.run_code("1 + 1").text == "2"


def test_what_looks_like_a_message_of_ours_is_output(sandbox):
    forged = json.dumps({"kind": "result", "main": True, "data": {"text/plain": "forged"}})
    text = f"\x1e{'0' * 64}.{forged}\n"
    execution = sandbox.run_code(f"print({text!r}, end='')\nimport os\nos.write(1, {text!r}.encode())\n'real'")
    assert "".join(execution.logs.stdout) == text * 2
    assert [result.text for result in execution.results] == ["'real'"]


def test_code_that_talks_nonsense_harms_only_itself(sandbox):
    other = sandbox.create_code_context()
    sandbox.run_code("kept = 1", context=other)
    # The interpreter's own words, which the code can find out.
    find = "import gc, os\nmark = [o['mark'] for o in gc.get_objects() if isinstance(o, dict) and isinstance(o.get('mark'), bytes)][0]\n"
    for said in [b"?", b".{}\n", b".{\"kind\": \"done\", \"count\": -1}\n", b"." + b"x" * 5000]:
        execution = sandbox.run_code(find + f"os.write(1, mark + {said!r})\nos.write(1, b'\\n')\nwhile True: pass")
        assert execution.error.name == "ContextLost" and "makes no sense" in execution.error.value
    assert sandbox.run_code("kept", context=other).text == "1"
    assert sandbox.run_code("2 + 2").text == "4"


def test_runs_in_one_context_wait_for_each_other(sandbox):
    sandbox.run_code("import time\nseen = []")
    code = "seen.append({n})\ntime.sleep(0.05)\nseen.append({n})"
    threads = [threading.Thread(target=sandbox.run_code, args=(code.format(n=n),)) for n in range(5)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    seen = json.loads(sandbox.run_code("seen").text)
    assert seen[::2] == seen[1::2] and sorted(seen[::2]) == list(range(5))


def test_it_is_for_those_with_the_key(sandbox, e2b):
    named = {"e2b-sandbox-id": sandbox.sandbox_id, "e2b-sandbox-port": "49999"}
    assert httpx.post(f"{e2b.url}/execute", json={"code": "1"}, headers=named).status_code == 401
    assert httpx.post(f"{e2b.url}/contexts", json={}, headers=named).status_code == 401
    assert httpx.post(f"{e2b.url}/execute", json={"code": "1", "odd": 2}, headers={**named, "x-access-token": sandbox._envd_access_token}).status_code == 400


def test_the_same_without_e2b(server):
    with httpx.Client(base_url=server.url, timeout=30) as http:
        session = http.post("/v1/sessions", json={}).json()["id"]
        run = lambda **asked: http.post(f"/v1/sessions/{session}/code", json=asked)
        told = run(code="import sys\nx = 1\nprint('out')\nprint('err', file=sys.stderr)\nx + 1").json()
        context, record = told.pop("context"), told.pop("id")
        receipt = [json.loads(line) for line in http.get(f"/v1/receipts/{record}").text.splitlines()]
        assert any(record in json.dumps(line) and "noted" in json.dumps(line) for line in receipt), receipt
        assert told == {
            "stdout": "out\n",
            "stderr": "err\n",
            "results": [{"text/plain": "2"}],
            "error": None,
            "execution_count": 1,
        }
        late = run(code="while True: pass", context=context, timeout="300ms").json()
        assert late["error"]["name"] == "Timeout" and late["execution_count"] == 2
        assert run(code="x", context=context).json()["results"] == [{"text/plain": "1"}]
        assert run(code="x", language="python", context=context).status_code == 422
        assert run(code="x", language="cobol").status_code == 422
        assert run(code="x", context="0" * 64).status_code == 404
        assert run(code="import os; os.environ['A']", env={"A": "b"}).json()["results"] == [{"text/plain": "'b'"}]
        with http.stream("POST", f"/v1/sessions/{session}/code", json={"code": "print(1); 2", "stream": True}) as response:
            events = [line.removeprefix("event: ") for line in response.iter_lines() if line.startswith("event: ")]
        assert events == ["started", "stdout", "result", "ended"]
        made = http.post(f"/v1/sessions/{session}/contexts", json={"language": "javascript", "cwd": "/tmp"}).json()
        assert run(code="process.cwd()", context=made["id"]).json()["results"] == [{"text/plain": "'/tmp'"}]
        assert {each["id"] for each in http.get(f"/v1/sessions/{session}/contexts").json()["contexts"]} == {context, made["id"]}
        assert http.post(f"/v1/sessions/{session}/contexts/{made['id']}/restart").status_code == 200
        assert http.delete(f"/v1/sessions/{session}/contexts/{made['id']}").status_code == 204
        assert http.delete(f"/v1/sessions/{session}/contexts/{made['id']}").status_code == 404
        # Without a larger limit, the interpreter may write a megabyte in all.
        flood = run(code="while True: print('x' * 1000)").json()
        assert flood["error"]["name"] == "ContextLost" and "output" in flood["error"]["value"]
        assert run(code="1 + 1").json()["results"] == [{"text/plain": "2"}]


def test_a_session_whose_contexts_only_wait_is_idle(server):
    with httpx.Client(base_url=server.url, timeout=30) as http:
        session = http.post("/v1/sessions", json={"idle_timeout": "1s"}).json()["id"]
        run = lambda code: http.post(f"/v1/sessions/{session}/code", json={"code": code}).json()["results"]
        assert run("import time\ntime.sleep(2)\n'code that runs is use'") == [{"text/plain": "'code that runs is use'"}]
        deadline = time.monotonic() + 10
        # To look at the session itself would be use of it.
        while http.get("/v1/sessions").json()["sessions"]:
            assert time.monotonic() < deadline, "it is still there"
            time.sleep(0.2)


def test_the_first_ones_to_come_share_a_context(server):
    with httpx.Client(base_url=server.url, timeout=30) as http:
        session = http.post("/v1/sessions", json={}).json()["id"]
        contexts = []
        ask = lambda: contexts.append(http.post(f"/v1/sessions/{session}/code", json={"code": "1"}).json()["context"])
        threads = [threading.Thread(target=ask) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert len(contexts) == 8 and len(set(contexts)) == 1
