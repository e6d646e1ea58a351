"""The entry point that componentize-py loads once, at build time. What memory holds when this module has been imported
is the snapshot that every later run starts from."""

import _casemate_stdlib as stdlib

# First, so that everything imported from here on comes from memory and keeps working when the build's files are gone.
stdlib.carry("/python")

import _casemate_run as run
import wit_world
from wit_world.imports import exit as wasi_exit
from wit_world.imports import types


class WitWorld(wit_world.WitWorld):
    def run(self, source, args):
        if isinstance(source, types.Source_Code):
            return run.code(source.value, args)
        return run.file(source.value.name, source.value.bytes, args)


run.prepare(wasi_exit.exit_with_code)
# Python rewrites a function's bytecode while it learns what the function is used for. Let it learn now: later, each such
# write would be a private page of its own in every instance.
for _ in range(100):
    WitWorld().run(types.Source_Code("import sys\nx = [1]\n"), ["a"])
    WitWorld().run(types.Source_File(types.File("main.py", b"import sys\nx = [1]\n")), [])
stdlib.freeze()
