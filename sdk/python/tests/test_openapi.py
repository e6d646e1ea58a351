"""What is sent is what the API's description knows, and all of it can be said."""

import inspect
import json
import re
from pathlib import Path

import pytest

from casemate import _calls, errors

DOCUMENT = json.loads((Path(__file__).parents[3] / "docs/openapi.json").read_text())
OPTIONS = (_calls.Walls, _calls.RunOptions, _calls.SandboxOptions, _calls.ProcessOptions, _calls.CodeOptions)

# What each option is called there, where it is not the same word, and what is said by other means than an option.
CASES = [
    (_calls.RunOptions, "NewExecution", {"timeout": "limits"}, {"command", "stdin_base64", "stream"}),
    (_calls.SandboxOptions, "NewSession", {"timeout": "ttl"}, set()),
    # Code in a new interpreter is a command; terminals are not offered yet.
    (
        _calls.ProcessOptions,
        "NewProcess",
        {"timeout": "limits"},
        {"command", "stdin", "stream", "background", "code", "language", "args", "terminal"},
    ),
]


@pytest.mark.parametrize(("options", "schema", "renamed", "otherwise"), CASES, ids=[case[1] for case in CASES])
def test_every_field_can_be_said(options, schema, renamed, otherwise):
    known = DOCUMENT["components"]["schemas"][schema]["properties"].keys()
    said = {renamed.get(option, option) for option in options.__annotations__}
    assert said | otherwise == set(known)


def example(parameter: inspect.Parameter):
    """Something to call with."""
    annotation = parameter.annotation.removesuffix(" | None")
    if annotation in {options.__name__ for options in OPTIONS}:
        return {}
    return {"int": 1, "bool": True, "bytes": b""}.get(annotation, "x")


def calls() -> dict[str, _calls.Call]:
    """One of each, by the function that makes it."""
    made = {}
    for name, function in inspect.getmembers(_calls, inspect.isfunction):
        signature = inspect.signature(function)
        if not name.startswith("_") and str(signature.return_annotation).startswith("Call[") and name != "streamed":
            given = {name: example(parameter) for name, parameter in signature.parameters.items()}
            made[name] = function(**given)
    return made


def described(call: _calls.Call) -> dict | None:
    for pattern, operations in DOCUMENT["paths"].items():
        if re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", pattern), call.path) and call.method.lower() in operations:
            return operations[call.method.lower()]
    return None


def test_every_address_is_described():
    assert sorted(name for name, call in calls().items() if described(call) is None) == []


def test_every_parameter_is_described():
    for name, call in calls().items():
        operation = described(call) or {}
        known = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "query"}
        assert call.query.keys() <= known, name


def test_every_code_is_an_exception():
    assert set(DOCUMENT["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]) == errors._BY_CODE.keys()
