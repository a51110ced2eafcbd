"""Servers of this process that answer what a test says, for commands that ask over HTTP."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answering = Callable[[str, str, dict[str, str], bytes], tuple[int, bytes]]
"""From method, target, headers (names in lower case) and body to code and body."""


@contextmanager
def answering(answer: Answering) -> Iterator[str]:
    """Serve on a free port of this machine during the block; gives host:port."""

    class Handler(BaseHTTPRequestHandler):
        """Answers whatever comes."""

        def do_GET(self) -> None:
            size = int(self.headers.get("content-length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            code, body = answer(self.command, self.path, headers, self.rfile.read(size))
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 (http.server's names)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
