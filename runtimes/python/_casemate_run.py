"""Runs one program as `python3` would, and turns how it ended into an exit status."""

import asyncio
import atexit
import importlib.util
import io
import linecache
import logging
import os
import selectors
import sys
import time
import types
import weakref

# Extension modules that cannot be built for WASI, by the name a program knows them under.
_PUBLIC_NAME = {
    "_dbm": "dbm.ndbm",
    "_gdbm": "dbm.gnu",
    "_interpreters": "concurrent.interpreters",
    "_posixshmem": "multiprocessing.shared_memory",
    "_zstd": "compression.zstd",
}
# What else ends a program that is fine elsewhere: exception type, words in its message, what is missing.
_MISSING_USES = (
    (RuntimeError, "can't start new thread", "threads do not"),
    (OSError, "does not support processes", "processes do not"),
    (AttributeError, "module 'os' has no attribute 'fork'", "processes do not"),
    (AttributeError, "module 'os' has no attribute 'WNOHANG'", "processes do not"),  # multiprocessing, on its way to fork
    (OSError, "[Errno -4] Non-recoverable error", "the network does not"),  # every name look-up
)
_HINT = "hint: {} exist in WASM Python; run this on a native stack, such as --on container\n"

_exit_with_code = None
_idle_exitfuncs = 0


def prepare(exit_with_code):
    """Build time: whatever does not depend on the run is made once and kept in the snapshot."""
    global _exit_with_code, _idle_exitfuncs
    _exit_with_code = exit_with_code
    _idle_exitfuncs = atexit._ncallbacks()
    os._exit = sys.modules["posix"]._exit = _exit_now
    sys.dont_write_bytecode = True  # a program's directory is its output: no __pycache__ in it
    sys.executable = ""
    asyncio.unix_events._UnixDefaultEventLoopPolicy._loop_factory = _EventLoop
    # Buffered like a python3 whose output is a pipe. The files behind descriptors 0, 1 and 2 are the run's own.
    sys.stdin = sys.__stdin__ = _text(io.BufferedReader(io.FileIO(0, "r", closefd=False), 8192), "<stdin>", "strict")
    sys.stdout = sys.__stdout__ = _text(io.BufferedWriter(io.FileIO(1, "w", closefd=False), 8192), "<stdout>", "strict")
    sys.stderr = sys.__stderr__ = _text(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False), 8192), "<stderr>", "backslashreplace", line_buffering=True
    )


class _Sleeper(selectors.SelectSelector):
    """Waiting, where time passing is the only thing that can happen."""

    def select(self, timeout=None):
        if self.get_map():
            return super().select(timeout)
        if timeout is None:
            raise RuntimeError("this event loop would wait for ever: WASM Python has no threads or signals to wake it")
        if timeout > 0:
            time.sleep(timeout)
        return []


class _EventLoop(asyncio.SelectorEventLoop):
    """asyncio's loop without the socket pair that lets threads and signals wake it; there are neither."""

    def __init__(self):
        super().__init__(_Sleeper())

    def _make_self_pipe(self):
        pass

    def _close_self_pipe(self):
        pass

    def _write_to_self(self):
        pass


def code(text, args):
    return _run(text, "<string>", ["-c", *args], "")


def file(name, data, args):
    return _run(data, name, [name, *args], os.path.dirname(name))


def _run(source, name, argv, directory):
    main = types.ModuleType("__main__")
    main.__builtins__ = sys.modules["builtins"]
    if name != "<string>":
        main.__file__ = name
    sys.modules["__main__"] = main
    sys.argv[:] = argv
    sys.orig_argv[:] = ["python3", *argv]
    sys.path[:] = [directory]
    try:
        os.chdir("/work")
    except OSError:
        pass  # no such preopen: stay in /
    try:
        program = compile(source, name, "exec", dont_inherit=True)
        _remember_lines(source, name)
        exec(program, main.__dict__)
        status = 0
    except BaseException as error:
        status = _status(error)
    return _finish(status)


def _status(error):
    if not isinstance(error, SystemExit):
        _report(error)
        return 1
    value = error.code
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    _flush(sys.stdout)
    print(value, file=sys.stderr)
    return 1


def _report(error):
    """Like the interpreter's own top level, without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    _flush(sys.stdout)
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException:
        sys.__excepthook__(type(error), error, trace)
    missing = _missing(error)
    if missing:
        sys.stderr.write(_HINT.format(missing))


def _missing(error):
    if isinstance(error, ImportError) and error.name:
        name = error.name.partition(".")[0]
        if name in sys.stdlib_module_names and name not in sys.modules:
            return f"the module {_PUBLIC_NAME.get(name, name.lstrip('_'))} does not"
    for kind, words, what in _MISSING_USES:
        if isinstance(error, kind) and words in str(error):
            return what
    return None


def _finish(status):
    # The modules in the snapshot have registered some functions that do nothing unless they were used.
    if atexit._ncallbacks() > _idle_exitfuncs or len(logging._handlerList) > 1 or weakref.finalize._registry:
        try:
            atexit._run_exitfuncs()
        except BaseException as error:
            _report(error)
    # As CPython: output that cannot be delivered turns success into 120.
    if not _flush(sys.stdout) and status == 0:
        status = 120
    _flush(sys.stderr)
    return status


def _exit_now(status):
    _exit_with_code(status & 0xFF)


def _flush(stream):
    try:
        if stream is not None and not stream.closed:
            stream.flush()
        return True
    except Exception:
        return False


def _remember_lines(source, name):
    """Source lines for tracebacks: the program need not be a file that can be read again."""
    if isinstance(source, bytes):
        source = importlib.util.decode_source(source)
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)


def _text(buffer, name, errors, line_buffering=False):
    buffer.raw.name = name
    return io.TextIOWrapper(buffer, "utf-8", errors, line_buffering=line_buffering)
