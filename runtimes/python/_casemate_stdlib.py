"""The standard library, carried in memory.

A component has no files of its own, so at build time every module is compiled, marshalled and kept in a dictionary that
becomes part of the snapshot. The pages are shared by all instances and read only when a module is imported.
"""

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import marshal
import os
import sys
import zlib

# Not library code, or useless without a screen. `tkinter` stays: its error names what is missing.
LEFT_OUT = {"__pycache__", "config-3.14-wasm32-wasi", "ensurepip", "idlelib", "site-packages", "test", "turtledemo"}

# Imported before the snapshot, so that a program's own import of them costs a dictionary look-up.
HOT = """
    __future__ abc argparse array ast asyncio atexit base64 binascii bisect calendar cmath codecs collections
    collections.abc colorsys concurrent.futures configparser contextlib contextvars copy csv dataclasses datetime
    _strptime decimal difflib dis email.message email.parser email.policy encodings.ascii encodings.idna encodings.latin_1
    encodings.unicode_escape encodings.utf_16 encodings.utf_8_sig enum errno fnmatch fractions functools gc getopt glob graphlib
    gzip hashlib heapq hmac html html.entities html.parser importlib.abc importlib.util inspect io ipaddress itertools json
    keyword linecache locale logging math mimetypes numbers operator os pathlib pickle platform pprint queue random re
    reprlib sched secrets shlex shutil signal sqlite3 stat statistics string struct sys tempfile textwrap threading time
    timeit token tokenize tomllib traceback types typing unicodedata unittest urllib.error urllib.parse uuid warnings
    weakref xml.etree.ElementTree zipfile zlib zoneinfo
""".split()

_fillers = []  # see `_fill_holes`
_modules = {}  # name -> (marshalled code, compressed source, path, is a package)


class Loader(importlib.abc.InspectLoader):
    """Finder and loader in one. Running a module is inherited, so that tracebacks leave the import machinery out;
    `get_source` is what gives tracebacks and `inspect` their source lines."""

    def find_spec(self, name, path=None, target=None):
        if name not in _modules:
            return None
        _, _, origin, package = _modules[name]
        spec = importlib.machinery.ModuleSpec(name, self, origin=origin, is_package=package)
        spec.has_location = True
        if package:
            spec.submodule_search_locations = [os.path.dirname(origin)]
        return spec

    def get_code(self, name):
        return marshal.loads(_modules[name][0])

    def get_source(self, name):
        return zlib.decompress(_modules[name][1]).decode() if name in _modules else None

    def is_package(self, name):
        return _modules[name][3]


_loader = Loader()


def carry(root):
    """Compiles everything below `root`, and puts it in front of the directories on `sys.path`."""
    for path, name, package in _walk(root, ""):
        with open(path, "rb") as file:
            source = file.read()
        code = compile(source, path, "exec", dont_inherit=True)
        _modules[name] = (marshal.dumps(code), zlib.compress(importlib.util.decode_source(source).encode()), path, package)
    # After the built-in and frozen modules, before `sys.path`: no search through directories for a standard module.
    sys.meta_path.insert(2, _loader)
    for name in HOT:
        importlib.import_module(name)


def freeze():
    """Makes the snapshot forget the build: its paths, its finders' caches, its garbage."""
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if spec is not None and name in _modules:
            # Imported before `carry`, from a file that will not be there.
            spec.loader = module.__loader__ = _loader
            spec.cached = None
            vars(module).pop("__cached__", None)
    sys.path[:] = []
    sys.path_importer_cache.clear()
    import linecache
    import re

    linecache.clearcache()
    re.purge()
    # Collect, then keep the collector away from what is left: looking at an object dirties its page.
    gc.collect()
    gc.freeze()
    _fill_holes()


def _fill_holes():
    """Uses up the free memory between the objects that stay, so that a run's own objects lie side by side behind them.
    Scattered, they would dirty a page each."""
    end = id(bytes(1 << 20))
    for size in (*range(65536, 512, -256), *range(496, 0, -16)):
        while True:
            filler = bytes(size)
            if id(filler) > end:
                break
            _fillers.append(filler)


def _walk(root, prefix):
    for entry in sorted(os.listdir(root)):
        path = root + "/" + entry
        if entry in LEFT_OUT:
            continue
        if entry.endswith(".py"):
            package = entry == "__init__.py"
            yield path, prefix[:-1] if package else prefix + entry[:-3], package
        elif os.path.isdir(path) and os.path.exists(path + "/__init__.py"):
            yield from _walk(path, prefix + entry + ".")
