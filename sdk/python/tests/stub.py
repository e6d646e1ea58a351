"""A server that says what a test wants it to say, for what a real one does not do on demand."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace


@contextmanager
def serving(*answers):
    """Each answer in turn: (status, headers, body), a whole JSON document, or None to hang up. Yields where, and what was asked."""
    asked, left = [], list(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            asked.append(
                SimpleNamespace(method=self.command, path=self.path, headers=self.headers, body=self.content())
            )
            said = left.pop(0)
            self.close_connection = True
            if said is None:
                return
            status, headers, body = said if isinstance(said, tuple) else (200, {}, said)
            if not isinstance(body, bytes):
                headers, body = {"content-type": "application/json", **headers}, json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), "connection": "close", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def content(self) -> bytes:
            if self.headers.get("transfer-encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("content-length", 0)))
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
    assert left == [], "not everything was asked for"


def problem(status: int, code: str, **headers: str):
    document = {
        "type": "about:blank",
        "title": "No",
        "status": status,
        "detail": "told why",
        "code": code,
        "hint": "do so",
    }
    return status, {"content-type": "application/problem+json", **headers}, json.dumps(document).encode()


def events(*told: tuple[str, object]) -> tuple[int, dict, bytes]:
    body = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in told)
    return 200, {"content-type": "text/event-stream"}, (": heartbeat\n\n" + body).encode()


EXECUTED = {"id": "e1", "status": {"kind": "exited", "code": 0}, "stdout": "hi\n", "stderr": "", "receipt": "2:ab"}
OPENED = {"id": "s1", "state": "running", "created": 1, "expires": 2, "stack": ["container"]}
