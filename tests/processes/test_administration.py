"""Commands, a real meta server, a client on a real socket: what is changed reaches the client."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from delay_protocol.basics.codes import CommandCode
from delay_protocol.meta.requests import (
    ClientRegister,
    ClientRegisterReply,
    ClientType,
    decode_client_register_reply,
    encode_client_register,
)
from delay_protocol.nodes.registration import (
    NodeRegistered,
    decode_node_reply,
    encode_node_register,
)
from delaywheel.main import main
from delaywheel.shared.admin_client import TOKEN_VARIABLE
from delaywheel.shared.failures import ExitCode
from tests.meta_server.meta_rig import node
from tests.processes.real_processes import Asker, ServerProcess, meta_server

pytestmark = pytest.mark.process


def run(meta: ServerProcess, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["admin", "--meta", meta.http, *arguments])


def done(meta: ServerProcess, *arguments: str) -> str:
    result = run(meta, *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def register(asker: Asker, subject: str) -> ClientRegisterReply:
    request = ClientRegister(subject=subject, client_type=ClientType.PRODUCER, client_id="h@@1")
    answer = asker.ask(CommandCode.CLIENT_REGISTER, encode_client_register(request))
    return decode_client_register_reply(answer.body)


def masters(reply: ClientRegisterReply) -> dict[str, str]:
    return {group.name: group.master for group in reply.groups}


def pushed(asker: Asker) -> dict[str, str]:
    return masters(decode_client_register_reply(asker.receive().body))


def test_changes_reach_a_connected_client_at_once_and_outlive_kill_9(tmp_path: Path) -> None:
    with meta_server(tmp_path / "data") as meta:
        meta.wait_ready()
        with Asker(meta.port) as client:
            done(meta, "set", "broker-group", "broker1", "address=127.0.0.1:20881")
            assert masters(register(client, "orders")) == {"broker1": "127.0.0.1:20881"}
            began = time.monotonic()
            done(meta, "set", "broker-group", "broker1", "address=127.0.0.1:20891")
            assert pushed(client) == {"broker1": "127.0.0.1:20891"}
            done(meta, "set", "broker-group", "broker2", "address=127.0.0.1:20882")
            # The subject has fewer groups than it should: it is given the new one by itself.
            assert set(pushed(client)) == {"broker1", "broker2"}
            done(meta, "set", "route", "orders", "groups=broker2")
            assert set(pushed(client)) == {"broker2"}
            said = done(meta, "set", "route", "or*", "groups=broker1")
            assert "subjects that begin with or have routes of their own and keep them" in said
            assert "`delaywheel admin get route --prefix or`" in said
            done(meta, "remove", "route", "orders")
            assert set(pushed(client)) == {"broker1"}
            done(meta, "read-only", "broker1")
            assert pushed(client) == {}
            done(meta, "read-only", "broker1", "--no-read-only")
            assert set(pushed(client)) == {"broker1"}
            assert time.monotonic() - began < 20
        before = json.loads(done(meta, "get", "audit", "--limit", "1", "--json"))
        meta.kill()
    with meta_server(tmp_path / "data") as meta:
        meta.wait_ready()
        with Asker(meta.port) as client:
            assert masters(register(client, "orders")) == {"broker1": "127.0.0.1:20891"}
        assert json.loads(done(meta, "get", "audit", "--limit", "1", "--json")) == before
        assert before["action"] == "broker-group.read-only"


def test_every_command_does_what_it_says(tmp_path: Path) -> None:
    with meta_server(tmp_path / "data") as meta:
        meta.wait_ready()
        with Asker(meta.port) as asker:
            body = asker.ask(CommandCode.NODE_REGISTER, encode_node_register(node())).body
            assert isinstance(decode_node_reply(body), NodeRegistered)
        for line, words in (
            ("set broker-group g1 static=false", "no"),
            ("set broker-group g2 address=h:1", "RW"),
            ("set broker-group g2 weight=7", "7"),
            ("get broker-group --prefix d", "d1"),
            ("retire g2 --lose-messages", "yes"),
            ("restore g2", "no"),
            ("read-only g2", "g2"),
            ("read-only g2 --no-read-only", "g2"),
            ("set broker b1/MASTER hostname=h ip=10.0.0.1 serve_port=1 sync_port=2", "MASTER"),
            ("set broker b1/MASTER sync_port=3", "3"),
            ("get broker", "MASTER"),
            ("remove broker b1 MASTER", "is removed"),
            ("set route orders groups=g1", "g1"),
            ("set route or* groups=g2", "g2"),
            ("get route", "or*"),
            ("get route or.x", "or*"),
            ("extend g1 g2", "1"),
            ("remove route or*", "is removed"),
            ("set subject s1", "s1"),
            ("get subject --prefix s", "s1"),
            ("get subject s1", "created"),
            ("get delay-group", "d1"),
            ("get delay-group d1", "n1"),
            ("get delay-node --all", "storage uuid"),
            ("set subject-rule c1/orders.* paused=true", "yes"),
            ("get cluster c1", "n1"),
            ("get audit --action broker-group", "weight 100 -> 7"),
            ("get audit --actor nobody", "none"),
        ):
            assert words in done(meta, *line.split()), line
        living = run(meta, "give-up", "d1", "n1", "--lose-messages")
        assert living.exit_code == ExitCode.REFUSED
        assert "heard lately" in living.stderr
        older = run(meta, "approve", "d1", "n1", "--lose-messages")
        assert older.exit_code == ExitCode.REFUSED
        assert "heard lately" in older.stderr
        shown = CliRunner().invoke(main, ["topology", "--meta", meta.http])
        assert shown.exit_code == 0
        assert "it has no HTTP address" in shown.output


@pytest.mark.long
def test_beyond_this_machine_a_token_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens.json"
    beyond = ("--http", "0.0.0.0:0")
    with meta_server(tmp_path / "data", options=beyond) as meta:
        assert meta.wait(20) == ExitCode.USAGE
        assert "delaywheel admin token add" in meta.sentence()
    assert not (tmp_path / "data" / "meta.db").exists()
    texts = {}
    for name, role in (("alice", "admin"), ("rob", "read")):
        line = ["admin", "token", "add", name, "--role", role, "--file", str(tokens)]
        texts[name] = CliRunner().invoke(main, line).output.strip()
    with meta_server(tmp_path / "data", options=(*beyond, "--tokens", str(tokens))) as meta:
        meta.wait_ready()
        meta.http = meta.http.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 (where it is asked)
        add = ("set", "broker-group", "g1", "address=h:1")
        assert run(meta, *add).exit_code == ExitCode.REFUSED
        monkeypatch.setenv(TOKEN_VARIABLE, texts["rob"])
        assert "none" in done(meta, "get", "broker-group")
        assert "this needs the role admin" in run(meta, *add).stderr
        monkeypatch.setenv(TOKEN_VARIABLE, texts["alice"])
        done(meta, *add)
        assert "alice" in done(meta, "get", "audit")
        assert meta.get("/meta/address")[0] == 200
        assert meta.get("/status")[0] == 401
        line = ["admin", "token", "remove", "alice", "--file", str(tokens)]
        assert CliRunner().invoke(main, line).exit_code == 0
        deadline = time.monotonic() + 5
        while run(meta, "get", "broker-group").exit_code == 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert all(text not in meta.log() for text in texts.values())
