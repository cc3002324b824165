"""An object store on this machine (moto's), whose answers can be made to fail."""

from __future__ import annotations

import atexit
import io
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from support.process_starts import leaves_ring_1

BUCKET = "bucket"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class Store:
    """The server; ``trouble`` may answer in its place.

    Attributes:
        url: where it is.
        trouble: gets method and path with the query; returns a status line to fail with, ``"cut"``
            to break the reply off in its middle, ``"late"`` to keep the request for :meth:`deliver`
            and to say that it failed, ``"lost"`` to carry it out and to say that it failed, or
            None. It is called under a lock.
        before: is called with method and path before a request is carried out, without a lock: it
            may wait.
        seen: method and path of each request.
    """

    def __init__(self, application: Callable[..., Any]) -> None:
        self._application, self._lock, self._conditional = (
            application,
            threading.Lock(),
            threading.Lock(),
        )
        self.trouble: Callable[[str, str], str | None] = lambda method, path: None
        self.before: Callable[[str, str], None] = lambda method, path: None
        self.seen: list[tuple[str, str]] = []
        self.late: list[dict[str, Any]] = []
        self.url = ""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        method = environ["REQUEST_METHOD"]
        path = environ["PATH_INFO"] + "?" + environ.get("QUERY_STRING", "")
        with self._lock:
            self.seen.append((method, path))
            trouble = self.trouble(method, path)
        self.before(method, path)
        if trouble in ("late", "lost"):
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            self.late.append({**environ, "wsgi.input": io.BytesIO(body)})
            environ["CONTENT_LENGTH"] = "0"  # it was read
            if trouble == "lost":
                self.deliver()
            trouble = "503 Slow Down"
        if trouble == "cut":
            parts = list(self._application(environ, start_response))
            return [b"".join(parts)[: sum(map(len, parts)) // 2]]
        if trouble is not None:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(trouble, [("Content-Type", "application/xml")])
            code = trouble.split(" ", 1)[1].replace(" ", "")
            return [f"<Error><Code>{code}</Code><Message>on purpose</Message></Error>".encode()]
        if "HTTP_IF_MATCH" in environ or "HTTP_IF_NONE_MATCH" in environ:
            with self._conditional:  # the library looks and writes in two steps, a store in one
                return list(self._application(environ, start_response))
        return self._application(environ, start_response)

    def deliver(self) -> list[str]:
        """Carry out the requests that were kept; returns the status of each."""
        said: list[str] = []
        while self.late:
            environ = self.late.pop(0)
            with self._conditional:
                try:
                    list(self._application(environ, lambda status, *_: said.append(status)))
                except KeyError:  # a part of an upload that is over: the library's way to say 404
                    said.append("404 No Such Upload")
        return said

    @cache  # noqa: B019  there is one store
    def client(self) -> Any:
        import boto3
        from botocore.config import Config

        # Copies keep their checksums of parts in this store, which the library takes for those of
        # the whole.
        config = Config(response_checksum_validation="when_required")
        return boto3.session.Session().client("s3", endpoint_url=self.url, config=config)

    def begin(self) -> None:
        """An empty bucket, and no trouble."""
        self.trouble, self.before = lambda method, path: None, lambda method, path: None
        self.late.clear()
        s3 = self.client()
        names = [b["Name"] for b in s3.list_buckets()["Buckets"]]
        if BUCKET in names:
            for each in s3.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
                s3.delete_object(Bucket=BUCKET, Key=each["Key"])
            for upload in s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ()):
                s3.abort_multipart_upload(
                    Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"]
                )
        else:
            s3.create_bucket(Bucket=BUCKET)
        self.seen.clear()

    def keys(self) -> list[str]:
        return [o["Key"] for o in self.client().list_objects_v2(Bucket=BUCKET).get("Contents", ())]

    def read(self, key: str) -> bytes:
        return bytes(self.client().get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def uploads(self) -> list[str]:
        return [
            u["Key"] for u in self.client().list_multipart_uploads(Bucket=BUCKET).get("Uploads", ())
        ]


@cache
def _server() -> Store:
    """One server for all tests of a process: it takes seconds to start."""
    moto = pytest.importorskip("moto.server")
    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    store = Store(moto.DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, store, True, request_handler=MotoRequestHandler)
    store.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    atexit.register(server.server_close)
    return store


@contextmanager
def running() -> Iterator[Store]:
    """An empty bucket, and credentials for it in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        leaves_ring_1("a server of moto")
        store = _server()
        store.begin()
        yield store
        store.trouble, store.before = lambda method, path: None, lambda method, path: None
