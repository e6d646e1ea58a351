"""A tool in Python: formats JSON."""

import json

import wit_world
from componentize_py_types import Err


class WitWorld(wit_world.WitWorld):
    def run(self, input: str) -> str:
        try:
            value = json.loads(input)
        except ValueError as error:
            raise Err(f"not JSON: {error}\n")
        return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
