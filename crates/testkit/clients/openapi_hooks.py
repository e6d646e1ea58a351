"""What schemathesis is told about this API that no description can say: keep what is begun short, and let some of it succeed."""

import io
import json
import os
import tarfile
import zlib

import schemathesis

# A session that is open for all of it, and a program in it that has ended.
SESSION, PID = os.environ["SESSION"], int(os.environ["PID"])
# What would end it, or make it stand still.
NOT_FOR_IT = ("killSession", "pauseSession", "extendSession")
PLACES = ("/work", "/work/data.txt", "/work/some/where", "/tmp/data.txt")
PROGRAM = ("command", "code", "component", "args", "language", "capabilities", "deterministic")


def archive() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("etc/nothing"))
    return made.getvalue()


@schemathesis.serializer("application/x-tar")
def as_it_is(context, value):
    return {"data": value if isinstance(value, bytes) else json.dumps(value).encode()}


@schemathesis.hook
def before_call(context, case, kwargs):
    name = case.operation.definition.raw.get("operationId")
    if name == "createSession" and isinstance(case.body, dict):
        # Nobody ends those that are opened like this.
        case.body.setdefault("ttl", "20s")
    if name in NOT_FOR_IT and case.path_parameters.get("id") == SESSION:
        case.path_parameters["id"] = "another"
    # What must not be accepted is otherwise sent as it is.
    if case.meta is None or case.meta.generation.mode != "positive":
        return
    # Always the same for the same request, and different among them.
    number = zlib.crc32(json.dumps([name, case.query, case.body], default=str).encode())
    if name == "createSession":
        case.body["ttl"] = "20s"
    if name in ("createExecution", "createProcess") and number % 3:
        for field in PROGRAM:
            case.body.pop(field, None)
        case.body["command"] = ["true"]
    if name == "createProcess" and number % 2:
        case.body["stream"], case.body["background"] = False, True
    if name == "importImage" and number % 2:
        case.body = archive()
    if case.operation.path.startswith("/v1/sessions/{id}") and name not in NOT_FOR_IT and number % 5:
        known = {"id": SESSION, "pid": PID}
        case.path_parameters = {part: known.get(part, given) for part, given in case.path_parameters.items()}
    for part in (case.query, case.body):
        for field in ("path", "from", "to"):
            if isinstance(part, dict) and field in part and number % 7:
                part[field] = PLACES[number // 7 % len(PLACES)]
