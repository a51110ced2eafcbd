"""A store that speaks as much of S3 as reading takes: HEAD, GET with a range, and listing.

On loopback, in threads of this process. It serves the files below a directory: its sub-directories
are the buckets. It counts what it is asked, and can be told to fail.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

KEY = "AKIATESTS"
"""The only access key that is let in; signatures are not looked at."""


@dataclass(slots=True)
class Store:
    """What is served, and what was asked for.

    asked: requests by method; read: bytes of objects that were sent; failing: by how a path ends,
    what it is answered instead.
    """

    root: Path
    endpoint: str = ""
    asked: Counter[str] = field(default_factory=Counter)
    read: int = 0
    failing: dict[str, HTTPStatus] = field(default_factory=dict)
    failing_once: set[str] = field(default_factory=set)
    """Ends of paths that are answered with an error the next time."""

    def environment(self, key: str = KEY) -> dict[str, str]:
        """Return what makes clients of S3 come here."""
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@contextlib.contextmanager
def s3_store(root: Path) -> Iterator[Store]:
    """Serve the sub-directories of `root` as buckets as long as the block lasts."""
    store = Store(root)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, store)) as server:
        store.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    wbufsize = -1
    """Answers go out in one piece: otherwise each waits for an acknowledgement."""

    def __init__(self, store: Store, *args: object) -> None:
        self._store = store
        super().__init__(*args)  # type: ignore[arg-type]

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name there)
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        url = urlsplit(self.path)
        path, query = unquote(url.path).strip("/"), parse_qs(url.query)
        self._store.asked[f"{self.command} list" if "list-type" in query else self.command] += 1
        bucket, _, key = path.partition("/")
        failing = next((s for e, s in self._store.failing.items() if path.endswith(e)), None)
        once = next((end for end in self._store.failing_once if path.endswith(end)), None)
        if once is not None:
            self._store.failing_once.discard(once)
            self._fail(HTTPStatus.SERVICE_UNAVAILABLE, "SlowDown")
        elif failing is not None:
            self._fail(failing, "InternalError")
        elif f"Credential={KEY}/" not in self.headers.get("Authorization", ""):
            self._fail(HTTPStatus.FORBIDDEN, "AccessDenied")
        elif not (self._store.root / bucket).is_dir():
            self._fail(HTTPStatus.NOT_FOUND, "NoSuchBucket")
        elif not key:
            prefix, slash = query.get("prefix", [""])[0], "delimiter" in query
            self._send(HTTPStatus.OK, self._listed(bucket, prefix, by_directory=slash))
        else:
            self._object(self._store.root / path)

    def _object(self, path: Path) -> None:
        if not path.is_file():
            self._fail(HTTPStatus.NOT_FOUND, "NoSuchKey")
            return
        size, wanted = path.stat().st_size, self.headers.get("Range")
        if wanted is None:
            self._send(HTTPStatus.OK, path.read_bytes() if self.command == "GET" else b"", size)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last or size) + 1, size)
        if begin >= size:
            self._fail(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "InvalidRange")
            return
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read(end - begin)
        self._store.read += len(data)
        told = {"Content-Range": f"bytes {begin}-{end - 1}/{size}"}
        self._send(HTTPStatus.PARTIAL_CONTENT, data, headers=told)

    def _listed(self, bucket: str, prefix: str, *, by_directory: bool) -> bytes:
        root = self._store.root / bucket
        files = {
            path.relative_to(root).as_posix(): path.stat().st_size
            for path in sorted(root.rglob("*"))
            if path.is_file() and path.relative_to(root).as_posix().startswith(prefix)
        }
        deeper = {
            prefix + name[len(prefix) :].partition("/")[0] + "/"
            for name in files
            if by_directory and "/" in name[len(prefix) :]
        }
        lines = [
            f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size>"
            "<LastModified>2026-11-21T00:00:00.000Z</LastModified></Contents>"
            for name, size in files.items()
            if not (by_directory and "/" in name[len(prefix) :])
        ]
        lines += [
            f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>"
            for one in sorted(deeper)
        ]
        text = "".join(lines)
        return (
            f"<ListBucketResult><Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(lines)}</KeyCount><MaxKeys>1000</MaxKeys>"
            f"<IsTruncated>false</IsTruncated>{text}</ListBucketResult>"
        ).encode()

    def _fail(self, status: HTTPStatus, code: str) -> None:
        self._send(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    def _send(
        self,
        status: HTTPStatus,
        data: bytes,
        size: int | None = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        length = len(data) if size is None else size
        told = {"Content-Length": str(length), "Last-Modified": formatdate(usegmt=True)}
        for name, value in (told | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
