"""What schemathesis is told about this API that no description can say: keep what is begun short, and let some of it run."""

import json
import zlib

import schemathesis

PROGRAMS = ("command", "code", "component", "args", "language", "capabilities", "deterministic")


@schemathesis.hook
def before_call(context, case, kwargs):
    # What must not be accepted is sent as it is.
    if case.meta is None or case.meta.generation.mode != "positive" or not isinstance(case.body, dict):
        return
    name = case.operation.definition.raw.get("operationId")
    if name == "createSession":
        # Those that nobody ends do not keep the others from being opened.
        case.body["ttl"] = "5s"
    elif name in ("createExecution", "createProcess") and zlib.crc32(json.dumps(case.body).encode()) % 2:
        for field in PROGRAMS:
            case.body.pop(field, None)
        case.body["command"] = ["true"]
