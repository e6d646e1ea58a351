"""Runs one piece of Python after another and keeps what they define.

Requests are lines of JSON on standard input. What the code writes goes where it always goes. What is told about it goes to standard
output as well, in lines that begin with a mark which is new for every process, each short enough to be written in one go: so it
cannot be mistaken for output, nor be torn apart by it.
"""

import ast
import base64
import importlib.util
import inspect
import io
import json
import linecache
import os
import signal
import sys
import threading
import traceback
import types

OURS, CELL = "<casemate>", "<cell "
PIECE = 3000
MOST = 12 << 20

REPRESENTATIONS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/pdf": "_repr_pdf_",
    "application/json": "_repr_json_",
    "application/javascript": "_repr_javascript_",
}

# The code may put something else into their place.
channel, errors = os.dup(1), os.dup(2)
telling = threading.Lock()
mark = b""
running = False
loop = None


def tell(frame):
    flush()
    text = json.dumps(frame).encode()
    if len(text) > MOST:
        print(f"a {frame['kind']} of {len(text)} bytes was left out", file=sys.stderr)
        return
    with telling:
        for at in range(0, len(text), PIECE):
            flag = b"+" if at + PIECE < len(text) else b"."
            os.write(channel, mark + flag + text[at : at + PIECE] + b"\n")


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


def plain(text, most=1 << 20):
    """Nothing that could not be sent, and not too much of it."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else text[:most] + "…"


# What a value looks like.


def represented(value):
    try:
        found = {"text/plain": plain(repr(value))}
    except Exception as error:
        found = {"text/plain": f"<{type(value).__name__} without a representation: {type(error).__name__}>"}
    bundle = part(value, "_repr_mimebundle_")
    bundle = bundle[0] if isinstance(bundle, tuple) else bundle
    offered = dict(bundle) if isinstance(bundle, dict) else {}
    for kind, method in REPRESENTATIONS.items():
        offered.setdefault(kind, part(value, method))
    for kind, content in offered.items():
        content = content[0] if isinstance(content, tuple) else content
        encoded = encode(kind, content)
        if encoded is not None:
            found[str(kind)] = encoded
    return found


def part(value, method):
    """What a method of its class says, if it has it."""
    # Objects that answer to every name have no such method in their class.
    if isinstance(value, type) or not callable(getattr(type(value), method, None)):
        return None
    try:
        return getattr(value, method)()
    except Exception:
        traceback.print_exc()
        return None


def encode(kind, content):
    if content is None:
        return None
    if isinstance(content, bytes):
        return base64.b64encode(content).decode()
    if kind == "application/json" or not isinstance(content, str):
        try:
            return json.dumps(content, allow_nan=False)
        except (TypeError, ValueError):
            return None
    return plain(content, MOST)


def display(*values, **_):
    """Shows values as results, before the code has ended."""
    for value in values:
        tell({"kind": "result", "main": False, "data": represented(value)})


def show_figures(*_, **__):
    """Draws what was plotted since, and forgets it."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    for number in pyplot.get_fignums():
        figure, image = pyplot.figure(number), io.BytesIO()
        figure.savefig(image, format="png", bbox_inches="tight")
        data = {"text/plain": plain(repr(figure)), "image/png": base64.b64encode(image.getvalue()).decode()}
        tell({"kind": "result", "main": False, "data": data})
    pyplot.close("all")


class PyplotShows:
    """Makes `pyplot.show()` show: without a screen it only warns. Nothing is imported before the code does."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "matplotlib.pyplot":
            return None
        sys.meta_path.remove(PyplotShows)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.show = show_figures

        spec.loader.exec_module = exec_module
        return spec


# Running.


def run(code, name):
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    tree = ast.parse(code, name)
    value = None
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr) and not code.rstrip().endswith(";"):
        tree.body.pop()
        evaluate(tree, name, "exec")
        value = evaluate(ast.Expression(last.value), name, "eval")
    else:
        evaluate(tree, name, "exec")
    if value is not None:
        namespace["_"] = value
        tell({"kind": "result", "main": True, "data": represented(value)})
    show_figures()


def evaluate(tree, name, mode):
    code = compile(tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    value = eval(code, namespace)
    return wait(value) if code.co_flags & inspect.CO_COROUTINE else value


def wait(coroutine):
    """One loop for all of them, so that what one has begun goes on in the next."""
    global loop
    import asyncio

    if loop is None:
        loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except KeyboardInterrupt:
        task.cancel()
        try:
            loop.run_until_complete(task)
        except (asyncio.CancelledError, Exception):
            pass
        raise


def report(error):
    told = traceback.TracebackException.from_exception(error)
    hide(told)
    try:
        value = str(error)
    except Exception as other:
        value = f"<no words: {type(other).__name__}>"
    name, value, text = plain(type(error).__name__, 256), plain(value, 1 << 16), plain("".join(told.format()), 1 << 18)
    tell({"kind": "error", "name": name, "value": value, "traceback": text})


def hide(told):
    """Leaves out how the code was called, and who interrupted it."""
    within = [at for at, frame in enumerate(told.stack) if frame.filename.startswith(CELL)]
    told.stack[:] = told.stack[within[0] :] if within else []
    waiting, seen = [told], set()
    while waiting:
        told = waiting.pop()
        if told is None or id(told) in seen:
            continue
        seen.add(id(told))
        told.stack[:] = [frame for frame in told.stack if frame.filename != OURS]
        waiting += [told.__cause__, told.__context__, *(getattr(told, "exceptions", None) or ())]


def interrupt(*_):
    """Once: the signal may come several times, and not all of them while the code still runs."""
    global running
    if running:
        running = False
        raise KeyboardInterrupt


def serve(requests):
    global running
    for count, line in enumerate(requests, 1):
        request = json.loads(line)
        before = dict(os.environ)
        os.environ.update(request["env"])
        signal.signal(signal.SIGINT, interrupt)
        try:
            running = True
            run(request["code"], f"{CELL}{count}>")
        except BaseException as error:
            running = False
            report(error)
        finally:
            running = False
        for name in request["env"]:
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]
        flush()
        os.write(errors, mark + b"." + str(count).encode() + b"\n")
        tell({"kind": "done", "count": count})


# The code asks nobody: its standard input is empty.
requests = os.fdopen(os.dup(0), "rb")
nothing = os.open(os.devnull, os.O_RDONLY)
os.dup2(nothing, 0)
os.close(nothing)
mark = json.loads(requests.readline())["mark"].encode()

for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(line_buffering=True, encoding="utf-8", errors="backslashreplace")
os.environ.setdefault("MPLBACKEND", "agg")
# Some have their settings in /etc, which is not in every cell, and do not start without any.
if not os.path.exists("/etc/matplotlibrc"):
    os.environ.setdefault("MATPLOTLIBRC", os.devnull)
sys.meta_path.insert(0, PyplotShows)
sys.argv = [""]

main = types.ModuleType("__main__")
main.display = display
main.__builtins__ = __builtins__
sys.modules["__main__"] = main
namespace = main.__dict__
serve(requests)
