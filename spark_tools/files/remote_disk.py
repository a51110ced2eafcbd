"""A data directory in an object store, or wherever else pyarrow's file systems reach; read only.

Errors are two. What is not there is a FileNotFoundError, as of a local disk, and readers take it
for damage. Whatever else goes wrong (no network, no credentials, no such bucket) is a RemoteError
and ends the run: of what could not be asked for nothing is known, not even that it is damaged.
"""

import contextlib
import errno
import functools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from spark_tools.files.errors import RemoteError

READ_BYTES = 1024 * 1024
"""The least that a request asks for: to answer at all takes a store as long as to send this."""
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 10
"""How long S3 may be silent in the middle of an answer."""
ATTEMPTS = 5
"""Of a request to S3, with longer and longer breaks: some seconds."""
RETRY_S = 30
"""How long a request to GCS is tried again."""
_STORES_MAX = 64
_SAID_MAX = 300
"""Characters of what pyarrow says that errors repeat; libhdfs tells of thirty places."""


class RemoteFile:
    """An open file of a RemoteDisk.

    It remembers what it read last, READ_BYTES or what was asked for if that was more: so readers
    may ask for little at a time. What it is asked for in order is asked for once.
    """

    def __init__(self, path: str, uri: str, source: Any) -> None:  # noqa: ANN401 (pyarrow's own)
        """source: a pyarrow.NativeFile that is open for reading at any position."""
        self._path = path
        self._uri = uri
        self._source = source
        with _told(uri):
            self._size: int = source.size()
        self._start = 0
        self._window = memoryview(b"")

    @property
    def path(self) -> str:
        """The path it was opened by."""
        return self._path

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes from `position`; fewer only at the end. RemoteError."""
        end = min(position + size, self._size)
        if end <= position:
            return b""
        known = self._start + len(self._window)
        if not self._start <= position < known:
            self._window, known = memoryview(b""), position
        else:
            self._window = self._window[position - self._start :]
        self._start = position
        if end > known:
            wanted = min(max(end - known, READ_BYTES), self._size - known)
            with _told(self._uri):
                more = self._source.read_at(wanted, known)
            self._window = memoryview(bytes(self._window) + more)
        return bytes(self._window[: end - position])

    def size(self) -> int:
        """Return the size in bytes when it was opened."""
        return self._size

    def close(self) -> None:
        """Close the file."""
        self._source.close()


class RemoteDisk:
    """A copy of a data directory, below a path of one of pyarrow's file systems."""

    def __init__(self, uri: str, system: fs.FileSystem, base: str) -> None:
        """uri: what errors name, without a slash at its end; base: the path in `system`."""
        self._uri = uri
        self._system = system
        self._base = base

    def open_read(self, path: str) -> RemoteFile:
        """Open for reading only. FileNotFoundError or RemoteError."""
        uri = f"{self._uri}/{path}"
        try:
            with _told(uri):
                source = self._system.open_input_file(self._below(path))
        except FileNotFoundError:
            self._require_bucket()
            raise
        try:
            return RemoteFile(path, uri, source)
        except RemoteError:
            source.close()
            raise

    def exists(self, path: str) -> bool:
        """Say whether a file or directory of this name is there. RemoteError."""
        with _told(f"{self._uri}/{path}"):
            [found] = self._system.get_file_info([self._below(path)])
        return bool(found.type != fs.FileType.NotFound)

    def list(self, directory: str) -> Sequence[str]:
        """Return the names in a directory, sorted; empty if there is none. RemoteError."""
        selector = fs.FileSelector(self._below(directory), allow_not_found=True)
        with _told(f"{self._uri}/{directory}"):
            return sorted(found.base_name for found in self._system.get_file_info(selector))

    def _below(self, path: str) -> str:
        return f"{self._base}/{path}" if self._base else path

    def _require_bucket(self) -> None:
        """Raise RemoteError if not even the first part of the path is there.

        A name that is wrong must not look like files that are gone.
        """
        match = re.match("/*[^/]+", self._base)
        if match is None:
            return
        with _told(self._uri):
            [found] = self._system.get_file_info([match[0]])
        if found.type == fs.FileType.NotFound:
            raise RemoteError(
                f"{self._uri} is nowhere: there is no {match[0]}; look at the name, and "
                f"{_store_of(self._uri).where}"
            )


def remote_disk(uri: str) -> RemoteDisk:
    """Return the disk that a URI names; nothing is asked for yet, but by S3 where a bucket is.

    Raises RemoteError for one that pyarrow does not know, or that has a secret in it.
    """
    parts = urlsplit(uri)
    if parts.password is not None or any(_SECRET.search(key) for key, _ in parse_qsl(parts.query)):
        raise RemoteError(
            f"a {parts.scheme} URI must have no secret in it, for results and logs name it: "
            f"credentials come from the environment; {_store_of(uri).credentials}"
        )
    # What is in the environment decides what a connection is; a forked child has none of ours.
    system, base = _opened(uri, os.getpid(), frozenset(os.environ.items()))
    return RemoteDisk(parts._replace(query="", fragment="").geturl().rstrip("/"), system, base)


_SECRET = re.compile("secret|password|token|key", re.IGNORECASE)


@functools.lru_cache(_STORES_MAX)
def _opened(
    uri: str,
    process: int,  # noqa: ARG001 (of the cache's key)
    environment: frozenset[tuple[str, str]],  # noqa: ARG001 (of the cache's key)
) -> tuple[fs.FileSystem, str]:
    """Return a file system, and the path in it. One for a URI: to make one costs requests."""
    parts = urlsplit(uri)
    with _told(uri):
        if parts.scheme in _S3:
            base = unquote(parts.netloc + parts.path).strip("/")
            return _s3(parts.netloc, dict(parse_qsl(parts.query))), base
        if parts.scheme in _GCS and "retry_limit_seconds" not in parts.query:
            # It would try for a quarter of an hour.
            more = f"{parts.query}&" if parts.query else ""
            uri = parts._replace(query=f"{more}retry_limit_seconds={RETRY_S}").geturl()
        system, base = fs.FileSystem.from_uri(uri)
        return system, base.rstrip("/")


def _s3(bucket: str, options: dict[str, str]) -> fs.FileSystem:
    """Return S3 with limits on time: a file system that is made of a URI has others."""
    if not bucket or "@" in bucket:
        raise ValueError("it must begin with the name of a bucket")
    unknown = options.keys() - {"region", "scheme", "endpoint_override"}
    if unknown:
        raise ValueError(f"unknown parameter {', '.join(sorted(unknown))}")
    named = os.environ
    endpoint = named.get("AWS_ENDPOINT_URL_S3") or named.get("AWS_ENDPOINT_URL")
    options = ({"endpoint_override": endpoint} if endpoint else {}) | options
    region = named.get("AWS_REGION") or named.get("AWS_DEFAULT_REGION")
    if region:
        options.setdefault("region", region)
    elif not {"region", "endpoint_override"} & options.keys():
        # Elsewhere than at AWS nobody can be asked.
        options["region"] = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=READ_TIMEOUT_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        **options,
    )


# -- errors ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Store:
    """What there is to say of a kind of store: whose environment decides who and where."""

    credentials: str
    where: str


_S3 = ("s3", "s3a")
_GCS = ("gs", "gcs")
_STORES = {
    _S3: _Store(
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), or AWS_PROFILE",
        "AWS_ENDPOINT_URL and AWS_REGION",
    ),
    _GCS: _Store(
        "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account",
        "CLOUD_STORAGE_EMULATOR_ENDPOINT, if it is set",
    ),
    ("abfs", "abfss"): _Store(
        "set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET",
        "the name of the storage account",
    ),
    ("hdfs", "viewfs"): _Store(
        "get a ticket (kinit), or set HADOOP_USER_NAME",
        "JAVA_HOME, HADOOP_HOME and CLASSPATH (`hadoop classpath --glob`), which libhdfs needs",
    ),
}
_ANY = _Store("look at what pyarrow says of this file system", "the URI")


def _store_of(uri: str) -> _Store:
    scheme = urlsplit(uri).scheme
    return next((store for schemes, store in _STORES.items() if scheme in schemes), _ANY)


_REFUSED = re.compile(
    r"ACCESS_DENIED|ACCESS_KEY|SIGNATURE|CREDENTIAL|EXPIRED_TOKEN|INVALID_TOKEN|UNAUTHENTICATED"
    r"|PERMISSION_DENIED|AccessControlException|HTTP status 40[13]\b|Permission denied",
    re.IGNORECASE,
)
_NO_BUCKET = re.compile(r"NO_SUCH_BUCKET|Bucket '.*' not found", re.IGNORECASE)
_NO_WAY = re.compile(
    r"NETWORK_CONNECTION|REQUEST_TIMEOUT|curl|UNAVAILABLE|DEADLINE_EXCEEDED|time[d -]*out"
    r"|connect|resolve|SLOW_DOWN|INTERNAL_FAILURE|HTTP status 5\d\d",
    re.IGNORECASE,
)


@contextlib.contextmanager
def _told(uri: str) -> Iterator[None]:
    """Turn what pyarrow raises into FileNotFoundError or RemoteError."""
    try:
        yield
    except RemoteError:
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), uri) from error
    except (OSError, ValueError, ImportError, pa.ArrowException) as error:
        raise RemoteError(_sentence(uri, str(error))) from error


def _sentence(uri: str, said: str) -> str:
    """Return what went wrong, and what to do."""
    store, said = _store_of(uri), " ".join(said.split())[:_SAID_MAX]
    if _NO_BUCKET.search(said):
        return f"{uri} is nowhere: there is no such bucket; look at the name, and {store.where}"
    if _REFUSED.search(said):
        return (
            f"{uri} may not be read with these credentials, or there are none: {store.credentials} "
            f"where this process runs, and its workers ({said})"
        )
    if _NO_WAY.search(said):
        return (
            f"{uri} cannot be reached: look at the network and {store.where}, then run it again "
            f"({said})"
        )
    return f"{uri} cannot be read: {said}; look at {store.where}"
