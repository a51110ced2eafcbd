"""A gateway as a process: from POST to a webhook, killed in between, with secrets and tokens."""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import standardwebhooks

from benchmarks.webhooks.endpoints import Endpoints
from tests.processes.real_processes import (
    READY_S,
    ROOT,
    STOP_S,
    ServerProcess,
    delaywheel,
    meta_server,
    server,
    until,
)

pytestmark = pytest.mark.process

SECRET = "whsec_" + "A" * 32
COMES_S = 30


@contextlib.contextmanager
def gateway(
    meta: ServerProcess, log: Path, *options: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a gateway; give the process and its address."""
    with log.open("ab") as log_file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "delaywheel", "gateway", "--meta", meta.http),
                *("--listen", "127.0.0.1:0", *options),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log_file,
            text=True,
        )
    assert process.stdout is not None
    try:
        ready = re.fullmatch(r"ready (\S+)\n", process.stdout.readline())
        assert ready, log.read_text()
        yield process, ready[1]
    finally:
        process.kill()
        process.wait(READY_S)
        process.stdout.close()


def post(address: str, path: str, body: bytes, headers: Mapping[str, str]) -> dict[str, object]:
    request = urllib.request.Request(f"http://{address}{path}", body, headers=dict(headers))
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
        found: dict[str, object] = json.load(answer)
        return found


def set_webhook(
    meta: ServerProcess, url: str, *fields: str, token_file: Path | None = None
) -> None:
    access = () if token_file is None else ("--token-file", str(token_file))
    done = delaywheel(
        *("admin", "--meta", meta.http, *access, "set", "webhook", "shop", f"url={url}"),
        *("subjects=orders.*", f"secrets={SECRET}", "private=127.0.0.1", *fields),
    )
    assert done.returncode == 0, done.stderr


async def until_got(endpoints: Endpoints, ill: str, count: int) -> None:
    got = endpoints.received[ill]
    assert await asyncio.to_thread(until, lambda: len(got) >= count, seconds=COMES_S)


def test_what_is_posted_comes_to_the_webhook_when_it_is_due(tmp_path: Path) -> None:
    async def main(meta: ServerProcess, process: subprocess.Popen[str], address: str) -> None:
        endpoints = Endpoints()
        url = await endpoints.serve("well")
        await asyncio.to_thread(set_webhook, meta, url)
        sent = await asyncio.to_thread(
            post,
            address,
            "/v1/messages/orders.paid",
            b'{"order": 7}',
            {
                "Content-Type": "application/json",
                "Delaywheel-Delay": "2s",
                "Delaywheel-Header-Tenant": "acme",
                "Idempotency-Key": "order.7",
            },
        )
        await until_got(endpoints, "well", 1)
        [one] = endpoints.received["well"]
        assert one.lateness_ms >= 0
        assert one.headers["delaywheel-due"] == sent["due"]
        assert one.headers["delaywheel-subject"] == "orders.paid"
        assert one.headers["delaywheel-header-tenant"] == "acme"
        assert one.headers["webhook-id"] == "order%2E7"
        found = standardwebhooks.Webhook(SECRET).verify(one.body, dict(one.headers))
        assert found == {"order": 7}
        # It is gone, which the meta server learns; what comes then waits.
        endpoints.status = 410
        await asyncio.to_thread(post, address, "/v1/messages/orders.paid", b"x", {})
        await until_got(endpoints, "well", 2)
        show = ("admin", "--meta", meta.http, "get", "webhook", "shop", "--json")

        def is_disabled() -> bool:
            return "410" in json.loads(delaywheel(*show).stdout)["disabled"]

        assert await asyncio.to_thread(until, is_disabled, seconds=COMES_S)
        row = (await asyncio.to_thread(delaywheel, *show)).stdout
        assert SECRET not in row
        endpoints.status = 200
        await asyncio.to_thread(post, address, "/v1/messages/orders.paid", b"x", {})
        await asyncio.to_thread(set_webhook, meta, url, "disabled=")
        await until_got(endpoints, "well", 4)
        assert len({one.headers["webhook-id"] for one in endpoints.received["well"]}) == 3
        process.terminate()
        assert await asyncio.to_thread(process.wait, STOP_S) == 0
        await endpoints.close()

    with (
        meta_server(tmp_path / "meta") as meta,
        server(tmp_path / "delay", options=("--meta", meta.wait_ready().http)) as delay,
    ):
        delay.wait_ready()
        with gateway(meta, tmp_path / "gateway.log") as (process, address):
            asyncio.run(main(meta, process, address))


@pytest.mark.long
def test_a_gateway_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    messages = 40

    async def main(meta: ServerProcess) -> None:
        endpoints = Endpoints()
        url = await endpoints.serve("slow")
        await asyncio.to_thread(set_webhook, meta, url, "concurrency=4")
        with gateway(meta, tmp_path / "gateway.log") as (process, address):
            body = json.dumps([{"subject": "orders.x", "body": str(n)} for n in range(messages)])
            found = await asyncio.to_thread(
                post,
                address,
                "/v1/messages",
                body.encode(),
                {"Content-Type": "application/json"},
            )
            assert found["accepted"] == messages
            await until_got(endpoints, "slow", 10)
            process.kill()
            # A message may be taken whose answer the gateway did not hear.
            with gateway(meta, tmp_path / "gateway.log"):
                got = endpoints.received["slow"]

                def is_complete() -> bool:
                    return len({one.body for one in got}) == messages

                assert await asyncio.to_thread(until, is_complete, seconds=COMES_S)
                await asyncio.sleep(1)
        ids = {one.headers["webhook-id"] for one in got}
        assert len(ids) == messages
        assert len({(one.headers["webhook-id"], one.body) for one in got}) == messages
        # At most as many again as were posted, or answered and not settled yet.
        assert messages <= len(got) <= messages + 8
        await endpoints.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.webhooks.endpoints.SLOW_S", 0.2)
        with (
            meta_server(tmp_path / "meta") as meta,
            server(tmp_path / "delay", options=("--meta", meta.wait_ready().http)) as delay,
        ):
            delay.wait_ready()
            asyncio.run(main(meta))


def test_where_there_are_tokens_and_a_secret_a_gateway_needs_a_token_alone(tmp_path: Path) -> None:
    secret, tokens, own = (tmp_path / name for name in ("secret", "tokens.json", "own.token"))
    secret.write_text("a secret that nobody else can guess")
    secret.chmod(0o600)
    added = delaywheel("admin", "token", "add", "gw", "--role", "admin", "--file", str(tokens))
    own.write_text(added.stdout)
    own.chmod(0o600)

    async def main(meta: ServerProcess, address: str) -> None:
        endpoints = Endpoints()
        url = await endpoints.serve("well")
        await asyncio.to_thread(set_webhook, meta, url, token_file=own)
        await asyncio.to_thread(post, address, "/v1/messages/orders.x", b"x", {})
        await until_got(endpoints, "well", 1)
        await endpoints.close()

    options = (
        *("--set", f"registration.secret_file={secret}", "--set", f"admin.token_file={tokens}"),
    )
    with meta_server(tmp_path / "meta", options=options) as meta:
        meta.wait_ready()
        more = ("--meta", meta.http, "--set", f"meta.secret_file={secret}")
        with server(tmp_path / "delay", options=more) as delay:
            delay.wait_ready()
            with gateway(meta, tmp_path / "gateway.log", "--cluster-token-file", str(own)) as made:
                asyncio.run(main(meta, made[1]))
