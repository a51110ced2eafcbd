"""`delaywheel log salvage` writes what it found elsewhere, and sends only when it is told to."""

import errno
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self
from unittest import mock

import pytest
from click.testing import CliRunner, Result

import delay_client
from delay_client import Outcome, OutgoingItem, Receipt, Refused
from delay_client.messages.item_encoder import ItemChecker
from delay_protocol.messages.items import decode_item, encode_attributes
from delaywheel.main import main
from delaywheel.shared.failures import ExitCode
from tests.delaywheel.endings import done, refused
from tests.golden.directory import written
from tests.storage.qmq_items import qmq_item
from tests.storage.store_rig import START_MS, StoreRig


def sent_item(due_ms: int, subject: bytes, message_id: bytes, _body: bytes) -> bytes:
    """Return an item as the client makes it, with the attributes that it adds."""
    body = encode_attributes(
        {"qmq_createTime": "1", "qmq_scheduleReceiveTime": str(due_ms), "k": "v"}
    )
    return qmq_item(due_ms, subject, message_id, body)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data directory in which two messages were delivered and three are pending."""
    rig = StoreRig(1)
    rig.open()
    rig.split()
    with mock.patch("tests.storage.store_rig.qmq_item", sent_item):
        rig.commit([START_MS + 1, START_MS + 2, START_MS + 10**7, START_MS + 10**7, START_MS + 3])
    rig.file()
    rig.load(steps=10)
    rig.now_ms += 100
    rig.deliver(2)
    rig.cross_off()
    rig.checkpoint()
    return written(rig.disk.contents(), tmp_path / "data")


def salvage(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["log", "salvage", *map(str, arguments)])


def index_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "index.jsonl").read_text().splitlines()]


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_what_is_found_is_written_elsewhere_and_the_directory_stays_as_it_was(
    data: Path, tmp_path: Path
) -> None:
    before, out = contents(data), tmp_path / "out"
    result = done(salvage(data, "--out", out))
    assert "5 messages found whole: 2 delivered, 3 pending" in result.stdout
    assert contents(data) == before
    entries = index_of(out)
    items = (out / "items.bin").read_bytes()
    assert [entry["state"] for entry in entries].count("pending") == 3
    for entry in entries:
        if entry["state"] == "delivered":
            assert entry["offset"] is None
        else:
            item = items[entry["offset"] : entry["offset"] + entry["size"]]
            assert entry["message_id"].encode() in item
            assert entry["file"].startswith("message_log/")
    assert (out / "damage.jsonl").read_text() == ""
    # An earlier salvage is replaced; with --delivered every item is kept.
    assert salvage(data, "--out", out, "--delivered").exit_code == 0
    assert all(entry["offset"] is not None for entry in index_of(out))


def test_damage_is_told_with_file_and_position_and_does_not_end_with_a_failure(
    data: Path, tmp_path: Path
) -> None:
    path = next((data / "message_log").glob("0*.log"))
    content = bytearray(path.read_bytes())
    content[content.rindex(b"DWB1") + 90] ^= 1
    done(CliRunner().invoke(main, ["log", "verify", str(data)]))
    path.write_bytes(content)
    verified = CliRunner().invoke(main, ["log", "verify", str(data)])
    [line] = [line for line in verified.stdout.splitlines() if json.loads(line)["damage"]]
    assert json.loads(line)["file"] == f"message_log/{path.name}"
    assert verified.exit_code == ExitCode.LOGS
    result = done(salvage(data, "--out", tmp_path / "out"))
    assert f"damaged: message_log/{path.name} at" in result.stdout
    [damage] = (tmp_path / "out" / "damage.jsonl").read_text().splitlines()
    assert json.loads(damage)["file"] == f"message_log/{path.name}"
    assert "3 in doubt" in result.stdout


def test_single_files_are_salvaged_with_what_their_directory_knows(
    data: Path, tmp_path: Path
) -> None:
    segments = sorted((data / "schedule_log").iterdir())
    result = done(salvage(*segments, "--out", tmp_path / "out"))
    assert "2 delivered, 3 pending" in result.stdout
    assert {entry["file"] for entry in index_of(tmp_path / "out")} == {
        f"schedule_log/{segment.name}" for segment in segments
    }


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("data", "--out", "data/out"), "to which nothing is written"),
        (("data", "--out", "full"), "holds no earlier salvage"),
        (("data", "data", "--out", "out"), "give one data directory"),
        (("full", "--out", "out"), "is no data directory"),
        (("data", "--out", "out", "--yes"), "go with --send"),
        (("data", "--out", "out", "--send", "nowhere", "--yes"), "nowhere"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    data: Path, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis").write_text("")
    there = [
        str(tmp_path / part) if part.split("/")[0] in {"data", "out", "full"} else part
        for part in arguments
    ]
    before = contents(data)
    refused(salvage(*there), ExitCode.USAGE, reason)
    assert contents(data) == before


class FakeClient:
    """Takes messages and remembers them; refuses those in `refuses`."""

    def __init__(self) -> None:
        self.sent: list[OutgoingItem] = []
        self.refuses: set[str] = set()
        self.servers: list[str] = []

    def __call__(self, servers: list[str], *, meta: None) -> "FakeClient":
        assert meta is None
        self.servers = servers
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send_items(
        self,
        items: Iterable[OutgoingItem],
        *,
        timeout: float | None,
    ) -> list[Outcome]:
        assert timeout is None
        outcomes: list[Outcome] = []
        for item in items:
            # As the real one does: it has its own rules.
            _, name, *_ = ItemChecker().encode(item, START_MS)
            self.sent.append(item)
            if name in self.refuses:
                outcomes.append(Refused(f"{name}: too late"))
            else:
                outcomes.append(Receipt(name, 0, "here", 1))
        return outcomes


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient()
    monkeypatch.setattr(delay_client, "BlockingClient", fake)
    return fake


def test_without_yes_it_is_only_said_what_would_be_sent(
    data: Path, tmp_path: Path, client: FakeClient
) -> None:
    result = done(salvage(data, "--out", tmp_path / "out", "--send", "127.0.0.1:1"))
    assert "would send 3 messages to 127.0.0.1:1, 3 of them overdue" in result.stdout
    assert "consumers may get it twice" in result.stderr
    assert client.sent == []


def test_what_is_pending_is_sent_with_its_id_its_time_and_its_attributes(
    data: Path, tmp_path: Path, client: FakeClient
) -> None:
    out = tmp_path / "out"
    result = done(
        salvage(data, "--out", out, "--send", "127.0.0.1:1", "--yes", "--rate", "2", "--delivered")
    )
    assert "3 of 3 messages accepted by 127.0.0.1:1" in result.stdout
    pending = [entry for entry in index_of(out) if entry["state"] == "pending"]
    for sent, entry in zip(client.sent, pending, strict=True):
        item = decode_item(sent.data)
        assert sent.subject == entry["subject"]
        assert (item.message_id, item.due_ms) == (entry["message_id"], entry["due_ms"])
        assert item.attributes["k"] == "v"


def test_the_help_says_that_what_is_sent_twice_is_delivered_twice() -> None:
    text = " ".join(salvage("--help").output.split())
    assert "does not know what it gets twice" in text


def test_refused_messages_are_counted_and_end_with_a_code(
    data: Path, tmp_path: Path, client: FakeClient
) -> None:
    salvage(data, "--out", tmp_path / "out")
    name = next(e["message_id"] for e in index_of(tmp_path / "out") if e["state"] == "pending")
    client.refuses = {name}
    result = salvage(data, "--out", tmp_path / "out", "--send", "127.0.0.1:1", "--yes")
    assert result.exit_code == ExitCode.REFUSED
    assert "2 of 3 messages accepted" in result.stdout
    assert f"{name}: too late" in result.stderr


def test_only_what_the_node_cannot_deliver_itself_is_sent_to_it(
    data: Path, tmp_path: Path, client: FakeClient
) -> None:
    out = tmp_path / "out"
    result = salvage(data, "--out", out, "--undeliverable", "--send", "127.0.0.1:1", "--yes")
    assert "0 messages found whole" in result.stdout
    assert client.sent == []
    [path] = [path for path in (data / "schedule_log").iterdir() if b"m5" in path.read_bytes()]
    content = path.read_bytes()
    path.write_bytes(content.replace(b"m5", b"mX"))
    done(salvage(data, "--out", out, "--undeliverable", "--send", "127.0.0.1:1", "--yes"))
    assert [decode_item(item.data).message_id for item in client.sent] == ["m5"]


def test_what_is_in_doubt_is_sent_only_if_it_is_asked_for(
    data: Path, tmp_path: Path, client: FakeClient
) -> None:
    shutil.rmtree(data / "message_log")
    shutil.rmtree(data / "dispatch_log")
    arguments = (data, "--out", tmp_path / "out", "--send", "127.0.0.1:1", "--yes")
    result = done(salvage(*arguments))
    states = Counter(entry["state"] for entry in index_of(tmp_path / "out"))
    assert states["in doubt"], states
    assert f"up to {states['in doubt']} messages may be sent again" in result.stdout
    assert f"{states['in doubt']} in doubt are left out; --in-doubt sends them" in result.stderr
    assert len(client.sent) == states["pending"]
    client.sent.clear()
    result = done(salvage(*arguments, "--in-doubt"))
    both = states["pending"] + states["in doubt"]
    assert f"{both} of {both} messages accepted" in result.stdout
    assert "left out" not in result.stderr
    assert len(client.sent) == both


def test_where_nothing_can_be_written_is_said_with_owner_and_remedy(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    result = salvage(data, "--out", tmp_path / "out")
    assert result.exit_code == ExitCode.DATA_DIRECTORY
    assert f"{tmp_path / 'out'} cannot be written: {tmp_path} belongs to" in result.output
    monkeypatch.setattr(Path, "mkdir", mock.Mock(side_effect=OSError(errno.EROFS, "read-only")))
    refused(salvage(data, "--out", tmp_path / "out"), ExitCode.DISK, "read-only")


@pytest.mark.parametrize("command", ["verify", "salvage"])
def test_a_file_that_this_user_may_not_read_ends_it_before_anybody_relies_on_the_rest(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    plain = os.open
    hidden = next((data / "schedule_log").glob("*.minute"))

    def refuse(path: str, *rest: int) -> int:
        if path == str(hidden):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return plain(path, *rest)

    monkeypatch.setattr(os, "open", refuse)
    out = ["--out", str(tmp_path / "out")] if command == "salvage" else []
    result = CliRunner().invoke(main, ["log", command, str(data), *out])
    assert result.exit_code == ExitCode.DATA_DIRECTORY
    assert f"{hidden} cannot be read: it belongs to" in result.output


@pytest.mark.parametrize("content", [b"", b"root:x:0:0:root:/root:/bin/bash\n"])
def test_a_file_that_is_no_log_ends_with_the_code_of_logs_whatever_looks_into_it(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "elsewhere" / "passwd"
    file.parent.mkdir()
    file.write_bytes(content)
    for arguments, sentence in (
        (("dump", str(file)), "1 damaged place(s) in"),
        (("verify", str(file)), "1 damaged file(s) in"),
        (("salvage", str(file), "--out", str(tmp_path / "out")), "no message was found whole"),
    ):
        refused(CliRunner().invoke(main, ["log", *arguments]), ExitCode.LOGS, sentence)
