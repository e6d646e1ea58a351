#!/usr/bin/env python3
"""Runs a table of programs through the test host and says which promises hold.

    tests/run.py HOST PYTHON.cwasm JAVASCRIPT.cwasm [WORD]      (only cases whose name contains WORD)
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HOST, PYTHON, JAVASCRIPT = sys.argv[1:4]
ONLY = sys.argv[4] if len(sys.argv) > 4 else ""
PY_HINT = "hint: the module {} does not exist in WASM Python; run this on a native stack, such as --on container\n"
JS_HINT = "hint: the module {} does not exist in WASM JavaScript; run this on a native stack, such as --on container\n"

failed = 0
count = 0


def run(cwasm, program, args=(), stdin=b"", files=None, env=(), host_args=()):
    with tempfile.TemporaryDirectory() as root:
        root = Path(root)
        (root / "work").mkdir()
        for name, data in (files or {}).items():
            (root / "work" / name).write_bytes(data)
        command = [HOST, "run", cwasm, "--dir", f"{root}/work:/work", *host_args]
        for pair in env:
            command += ["--env", pair]
        if isinstance(program, tuple):
            path = root / program[0]
            path.write_bytes(program[1])
            command += [str(path)]
        else:
            command += ["-c", program]
        done = subprocess.run([*command, *args], input=stdin, capture_output=True, timeout=120)
        left = {path.name: path.read_bytes() for path in (root / "work").iterdir() if path.is_file()}
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), left


def matches(expected, got):
    return expected is None or (expected.search(got) is not None if isinstance(expected, re.Pattern) else expected == got)


def case(name, cwasm, program, *, out="", err="", code=0, left=None, **how):
    global failed, count
    if ONLY not in name:
        return
    count += 1
    got_code, got_out, got_err, got_left = run(cwasm, program, **how)
    wrong = []
    if got_code != code:
        wrong.append(f"exit status {got_code}, expected {code}")
    if not matches(out, got_out):
        wrong.append(f"stdout {got_out!r}")
    if not matches(err, got_err):
        wrong.append(f"stderr {got_err!r}")
    for file, data in (left or {}).items():
        if got_left.get(file) != data:
            wrong.append(f"file {file}: {got_left.get(file)!r}")
    failed += bool(wrong)
    print("ok  " if not wrong else "FAIL", name, *wrong, sep="  ")


def py(name, program, **how):
    case(f"python: {name}", PYTHON, program, **how)


def js(name, program, **how):
    case(f"javascript: {name}", JAVASCRIPT, program, **how)


# ---- Python

py("prints", "print(1)", out="1\n")
py("arguments of code", "import sys; print(sys.argv)", args=["a", "b c"], out="['-c', 'a', 'b c']\n")
py("arguments of a file", ("m.py", b"import sys; print(sys.argv, __file__, __name__)"), args=["a"], out="['m.py', 'a'] m.py __main__\n")
py("stdin whole", "import sys; print(repr(sys.stdin.read()))", stdin="é\n".encode(), out="'é\\n'\n")
py("stdin input()", "print(input() + input())", stdin=b"a\nb\n", out="ab\n")
py("stdin input() with prompt", "print(input('? '))", stdin=b"a\n", out="? a\n")
py("stdin lines", "import sys; print([line for line in sys.stdin])", stdin=b"a\nb", out="['a\\n', 'b']\n")
py("stdin bytes", "import sys; print(sys.stdin.buffer.read())", stdin=b"\xff", out="b'\\xff'\n")
py("stdin at its end", "input()", code=1, err=re.compile("EOFError: EOF when reading a line\n$"))
py("stdin large", "import sys; print(len(sys.stdin.read()))", stdin=b"x" * 3_000_000, out="3000000\n")
py("stdout bytes", "import sys; sys.stdout.buffer.write(b'a\\n'); print('b')", out=re.compile("a"))
py("stdout large", "print('x' * 3_000_000)", out="x" * 3_000_000 + "\n")
py("stdout without newline is flushed", "import sys; sys.stdout.write('a')", out="a")
py("stderr", "import sys; print('e', file=sys.stderr)", err="e\n")
py("unicode", "print('日本 é 😀')", out="日本 é 😀\n")
py("exit 0", "import sys; sys.exit()")
py("exit number", "import sys; sys.exit(7)", code=7)
py("exit wraps", "raise SystemExit(300)", code=44)
py("exit text", "import sys; print('a'); sys.exit('bye')", code=1, out="a\n", err="bye\n")
py("exit at once", "import os; print('lost'); os._exit(9)", code=9)
py("exit functions", "import atexit; atexit.register(print, 'bye'); print('hi')", out="hi\nbye\n")
py("exit functions after an error", "import atexit; atexit.register(print, 'bye'); 1/0", out="bye\n", code=1, err=re.compile("ZeroDivisionError"))
py("logging", "import logging; logging.basicConfig(level='INFO'); logging.info('x')", err="INFO:root:x\n")
py(
    "traceback of code",
    "def f(x):\n    return 1 / x\nf(0)",
    code=1,
    err='Traceback (most recent call last):\n  File "<string>", line 3, in <module>\n    f(0)\n    ~^^^\n  File "<string>", line 2, in f\n    return 1 / x\n           ~~^~~\nZeroDivisionError: division by zero\n',
)
py("traceback names the file", ("prog.py", b"\nraise ValueError('x')"), code=1, err='Traceback (most recent call last):\n  File "prog.py", line 2, in <module>\n    raise ValueError(\'x\')\nValueError: x\n')
py("traceback through the library", "import json\njson.loads('{')", code=1, err=re.compile(r"json/decoder.py.*scan_once\(s, idx\)", re.S))
py("traceback of a chain", "try:\n    1/0\nexcept Exception as e:\n    raise KeyError(1) from e", code=1, err=re.compile("direct cause.*KeyError: 1\n$", re.S))
py("traceback has none of our frames", "import bz2", code=1, err=re.compile(r"^(?!.*_casemate)(?!.*importlib)", re.S))
py("syntax error", ("s.py", b"x = (\n"), code=1, err='  File "s.py", line 1\n    x = (\n        ^\nSyntaxError: \'(\' was never closed\n')
py("excepthook of the program", "import sys; sys.excepthook = lambda *a: print('mine'); 1/0", code=1, out="mine\n")
py("source encoding", ("l.py", b"# -*- coding: latin-1 -*-\nprint('caf\xe9')\n"), out="café\n")
py("source with a mark", ("b.py", b"\xef\xbb\xbfprint(1)\n"), out="1\n")
py("environment", "import os; print(dict(os.environ), os.getenv('A'))", env=["A=b"], out="{'A': 'b'} b\n")
py("environment is not the build's", "import os; print(list(os.environ))", out="[]\n")
py("working directory", "import os; print(os.getcwd())", out="/work\n")
py("files", "import os, pathlib; pathlib.Path('o.txt').write_text('ü'); print(open('i.txt').read(), sorted(os.listdir()), os.path.getsize('o.txt'))", files={"i.txt": b"in"}, out="in ['i.txt', 'o.txt'] 2\n", left={"o.txt": "ü".encode()})
py("files outside do not exist", "open('/etc/passwd')", code=1, err=re.compile("FileNotFoundError"))
py("files cannot climb out", "open('/work/../etc/passwd')", code=1, err=re.compile("(FileNotFound|Permission)Error"))
py("temporary files", "import tempfile\nwith tempfile.TemporaryDirectory(dir='.') as d: open(d + '/x', 'w').write('y'); print(open(d + '/x').read())", out="y\n")
py("own modules", "import helper; print(helper.x)", files={"helper.py": b"x = 5"}, out="5\n")
py("own modules leave no cache", "import helper, os; print(os.listdir())", files={"helper.py": b"x = 5"}, out="['helper.py']\n")
py("sqlite", "import sqlite3; c = sqlite3.connect('t.db'); c.execute('create table t(x)'); c.execute('insert into t values (1)'); c.commit(); print(c.execute('select * from t').fetchall())", out="[(1,)]\n")
py("asyncio", "import asyncio\nasync def f(n):\n    await asyncio.sleep(0.01)\n    return n\nasync def main(): print(await asyncio.gather(f(1), f(2)))\nasyncio.run(main())", out="[1, 2]\n")
py("sleep", "import time; t = time.time(); time.sleep(0.05); print(time.time() - t >= 0.05)", out="True\n")
py("recursion", "def f(): f()\nf()", code=1, err=re.compile("RecursionError"))
py("recursion through C", "class A:\n    def __repr__(self): return repr(self)\nimport sys; sys.setrecursionlimit(10**6)\nrepr(A())", code=1, err=re.compile("RecursionError: Stack overflow"))
py("recursion by consent", "import sys; sys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(50000))", out="50000\n")
py("memory", "try: x = bytearray(10**9)\nexcept MemoryError: print('no', len(bytearray(10**6)))", host_args=["--memory", "256"], out="no 1000000\n")
py("memory bit by bit", "k = []\ntry:\n    while 1: k.append([0] * 1000)\nexcept MemoryError:\n    del k; print('ok', sum(range(10)))", host_args=["--memory", "256"], out="ok 45\n")
py("memory uncaught", "x = bytearray(10**9)", host_args=["--memory", "256"], code=1, err=re.compile("MemoryError"))
py("missing module", "import ctypes", code=1, err=re.compile("No module named '_ctypes'\n" + re.escape(PY_HINT.format("ctypes")) + "$"))
py("missing module caught", "try: import fcntl\nexcept ImportError as e: print(e)", out="No module named 'fcntl'\n")
py("missing module misspelt has no hint", "import jsno", code=1, err=re.compile("No module named 'jsno'\n$"))
py("processes", "import subprocess; subprocess.run(['ls'])", code=1, err=re.compile("hint: processes do not exist"))
py("threads", "import threading; threading.Thread(target=print).start()", code=1, err=re.compile("hint: threads do not exist"))
py("multiprocessing", "import multiprocessing as m; m.Process(target=print).start()", code=1, err=re.compile("hint: processes do not exist"))
py("network", "import urllib.request; urllib.request.urlopen('http://example.com')", code=1, err=re.compile("hint: the network does not exist"))
py("library at large", "import json, re, datetime, decimal, hashlib, statistics, textwrap, uuid, difflib, csv, xml.etree.ElementTree as E, email, http.client, zipfile, unittest, wave, plistlib, cProfile; print(hashlib.sha256(b'').hexdigest()[:8], E.fromstring('<a b=\"1\"/>').get('b'))", out="e3b0c442 1\n")
py("dataclass and pickle in __main__", "import pickle, dataclasses\n@dataclasses.dataclass\nclass P: x: int\nprint(pickle.loads(pickle.dumps(P(1))))", out="P(x=1)\n")
py("source of own functions", "import inspect\ndef f(): return 1\nprint(inspect.getsource(f))", out="def f(): return 1\n\n")

# ---- JavaScript

js("prints", "console.log(1)", out="1\n")
js("prints values", "console.log('%s=%d', 'a', 1, {a: [1, 'x'], m: new Map([[1, 2]])}, null)", out="a=1 { a: [ 1, 'x' ], m: Map(1) { 1 => 2 } } null\n")
js("arguments of code", "console.log(process.argv)", args=["a"], out="[ 'node', 'a' ]\n")
js("arguments of a file", ("m.js", b"console.log(process.argv)"), args=["a"], out="[ 'node', 'm.js', 'a' ]\n")
js("stderr", "console.error('e'); console.warn('w'); process.stderr.write('x')", err="e\nw\nx")
js("stdout write", "process.stdout.write('a'); process.stdout.write(new Uint8Array([98]))", out="ab")
js("stdout large", "console.log('é'.repeat(1000000))", out="é" * 1000000 + "\n")
js("stdin whole", "console.log(require('fs').readFileSync(0, 'utf8').length)", stdin=b"x" * 300000, out="300000\n")
js("stdin events", "let s = ''; process.stdin.setEncoding('utf8'); process.stdin.on('data', d => s += d).on('end', () => console.log(s))", stdin="é€".encode(), out="é€\n")
js("stdin lines", "require('readline').createInterface({input: process.stdin}).on('line', l => console.log('>' + l)).on('close', () => console.log('end'))", stdin=b"a\nb\n", out=">a\n>b\nend\n")
js("stdin async", "for await (const c of process.stdin) console.log(String(c))", stdin=b"a", out="a\n")
js("unicode", "console.log('日本 é 😀', '\\ud800'.length)", out="日本 é 😀 1\n")
js("exit", "console.log(1); process.exit(7)", out="1\n", code=7)
js("exit code", "process.exitCode = 3", code=3)
js("exit event", "process.on('exit', c => console.log('bye', c))", out="bye 0\n")
js("uncaught", ("p.js", b"function f() {\n  null.x\n}\nf()"), code=1, err="Uncaught TypeError: cannot read property 'x' of null\n    at f (p.js:2:3)\n    at p.js:4:1\n")
js("uncaught value", "throw 5", code=1, err="Uncaught 5\n")
js("uncaught in a timer", "setTimeout(() => { throw new Error('t') }, 1); setTimeout(() => console.log('never'), 20)", code=1, err=re.compile("^Uncaught Error: t\n"))
js("uncaught in main()", "async function main() { await 1; throw new Error('m') }\nmain()", code=1, err=re.compile("^Uncaught Error: m\n    at main"))
js("uncaught after await", "await 1;\nthrow new TypeError('late')", code=1, err=re.compile(r"^Uncaught TypeError: late\n    at \[eval\]:2:"))
js("syntax error", ("s.js", b"let a = 1\nfoo bar"), code=1, err=re.compile(r"^Uncaught SyntaxError: .*\n    at s.js:2:"))
js("order", "setTimeout(() => console.log(3)); Promise.resolve().then(() => console.log(2)); console.log(1)", out="1\n2\n3\n")
js("timers", "const t = Date.now(); const i = setInterval(() => { console.log('i'); clearInterval(i) }, 5); setTimeout(() => console.log(Date.now() - t >= 30), 30)", out="i\ntrue\n")
js("await", "const x = await new Promise(r => setTimeout(() => r(5), 5)); console.log(x)", out="5\n")
js("await in a block", "if (true) { const x = await Promise.resolve(5); console.log(x) }", out="5\n")
js("await for ever", "await new Promise(() => {})", code=13, err=re.compile("Warning"))
js("environment", "console.log(process.env)", env=["A=b"], out="{ A: 'b' }\n")
js("files", "const fs = require('fs'); fs.writeFileSync('o.txt', 'ü'); fs.mkdirSync('d/e', {recursive: true}); console.log(fs.readFileSync('i.txt', 'utf8'), fs.readdirSync('.'), fs.statSync('o.txt').size, process.cwd())", files={"i.txt": b"in"}, out="in [ 'd', 'i.txt', 'o.txt' ] 2 /work\n", left={"o.txt": "ü".encode()})
js("files outside do not exist", "require('fs').readFileSync('/etc/passwd')", code=1, err=re.compile("ENOENT: no such file or directory, open '/etc/passwd'"))
js("files cannot climb out", "require('fs').readFileSync('/work/../etc/passwd')", code=1, err=re.compile("ENOENT"))
js("files as promises", "const { readFile } = require('fs/promises'); console.log(await readFile('i.txt', 'utf8'))", files={"i.txt": b"in"}, out="in\n")
js("own modules", "const m = require('./m'); console.log(m.x, require('./d.json').y)", files={"m.js": b"exports.x = 5", "d.json": b'{"y": 6}'}, out="5 6\n")
js("own ES modules", ("p.mjs", b"import d, { x as z } from './m.mjs';\nimport * as path from 'node:path';\nconsole.log(d, z, path.sep)"), files={"m.mjs": b"export const x = 5;\nexport default 'dd';"}, out="dd 5 /\n")
js("errors name the required file", "require('./m').f()", files={"m.js": b"\nexports.f = () => { throw new Error('x') }"}, code=1, err=re.compile(r"at /work/m.js:2:"))
js("import()", "const os = await import('os'); console.log(os.EOL === '\\n', 'import(x)')", out="true import(x)\n")
js("missing module", "require('http')", code=1, err=re.compile("Cannot find module 'http'.*" + re.escape(JS_HINT.format("http")) + "$", re.S))
js("missing package", "require('lodash')", code=1, err=re.compile("Cannot find module 'lodash'.*hint: the package lodash does not exist", re.S))
js("missing module caught", "try { require('net') } catch (e) { console.log(e.code) }", out="MODULE_NOT_FOUND\n")
js("network", "await fetch('http://example.com')", code=1, err=re.compile("hint: the network does not exist"))
js("text encoder", "console.log(new TextEncoder().encode('é'), new TextDecoder().decode(new Uint8Array([0xc3, 0xa9, 0xff, 0x41])))", out="Uint8Array(2) [ 195, 169 ] é\ufffdA\n")
js("buffer", "console.log(Buffer.from('hi').toString('hex'), Buffer.from('aGk=', 'base64') + '', Buffer.from('é'))", out="6869 hi <Buffer c3 a9>\n")
js("url", "const u = new URL('../c?x=1&y=a+b#h', 'https://h:8080/a/b/'); console.log(u.href, u.searchParams.get('y'))", out="https://h:8080/a/c?x=1&y=a+b#h a b\n")
js("memory", "const a = []; for (;;) a.push(new Uint8Array(1e6).fill(1))", host_args=["--memory", "64"], code=1, err=re.compile("out of memory"))
js("memory caught", "try { const a = []; for (;;) a.push(new Uint8Array(1e6).fill(1)) } catch (e) { console.log(e.message) }", host_args=["--memory", "64"], out="out of memory\n")
# QuickJS has no stack check on WASI; the trap is all there is, and the host has to put it into words.
js("recursion ends in a trap", "const f = () => 1 + f(); f()", code=134, err=re.compile("out of bounds memory access|call stack exhausted"))

# ---- nothing that should differ between two runs was frozen


def differ(name, cwasm, program):
    global failed, count
    if ONLY not in name:
        return
    count += 1
    first, second = run(cwasm, program)[1], run(cwasm, program)[1]
    good = first != second and first != ""
    failed += not good
    print("ok  " if good else f"FAIL  {first!r}", name, sep="  ")


for expression in ("random.random()", "os.urandom(4)", "uuid.uuid4()", "uuid.uuid1()", "secrets.token_hex()", "time.time_ns()", "datetime.datetime.now()", "tempfile.mktemp()", "statistics.NormalDist().samples(1)"):
    differ(f"python: {expression} differs", PYTHON, f"import datetime, os, random, secrets, statistics, tempfile, time, uuid; tempfile.tempdir = '/work'; print({expression})")
for expression in ("Math.random()", "crypto.randomUUID()", "crypto.getRandomValues(new Uint32Array(1))", "Date.now()"):
    differ(f"javascript: {expression} differs", JAVASCRIPT, f"console.log({expression})")

# ---- every standard module

IMPORT_ALL = """
import importlib, sys, warnings
warnings.simplefilter("ignore")
for name in sorted(sys.stdlib_module_names - {"antigravity", "this"}):
    try:
        importlib.import_module(name)
        print(name, "ok")
    except BaseException as error:
        print(name, type(error).__name__, error)
"""
# The extension modules that WASI cannot have, what is built on them, other systems' modules, and what was left out.
ABSENT = set(
    """_bz2 _ctypes _curses _curses_panel _dbm _gdbm _hashlib _interpchannels _interpqueues _interpreters _lzma _multiprocessing
    _overlapped _posixshmem _posixsubprocess _remote_debugging _scproxy _ssl _tkinter _uuid _winapi _wmi _zstd bz2 ctypes curses
    ensurepip fcntl grp idlelib lzma mmap msvcrt nt pty pwd readline resource ssl syslog termios tkinter tty turtle turtledemo
    winreg winsound""".split()
)
if ONLY in "python: every standard module":
    count += 1
    lines = run(PYTHON, IMPORT_ALL)[1].splitlines()
    absent = {line.split()[0]: line for line in lines if not line.endswith(" ok")}
    print(f"      {len(lines) - len(absent)} standard modules import, {len(absent)} do not")
    surprises = [absent.get(name, f"{name} is there") for name in sorted(set(absent) ^ ABSENT)]
    failed += bool(surprises) or len(lines) < 250
    print("FAIL" if surprises or len(lines) < 250 else "ok  ", "python: every standard module", *surprises, sep="  ")

print(f"{count - failed} of {count} hold")
sys.exit(failed > 0)
