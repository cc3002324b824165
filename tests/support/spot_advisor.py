"""Shared by the tests of the Spot Advisor."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler

from support.aws_account import FOLDER
from support.http_server import QuietServer

FILE = (FOLDER / "spot-advisor-data.json").read_bytes()


@contextlib.contextmanager
def serving(answer):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answer(self)
            self.close_connection = True

        def log_message(self, *_):
            pass

    server = QuietServer(("127.0.0.1", 0), Handler)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def say(body=FILE, status=200, promised=None, **headers):
    def answer(handler):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body) if promised is None else promised))
        handler.end_headers()
        handler.wfile.write(body)

    return answer
