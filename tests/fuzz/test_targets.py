"""No decoder is left out, and a target notices a decoder that breaks its promise."""

import ast
import pkgutil
import re
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from delay_protocol.messages.items import ItemScan, scan_items
from delay_protocol.messages.send_message import decode_send_reply
from delay_protocol.wire.frames import FrameDecoder
from storage.batch import batches, columns
from storage.batch.batches import BatchHeader
from storage.batch.columns import RecordKind
from storage.batch.facts import FactBlock, facts_stated, filed_facts_of
from storage.readers import item_reader
from storage.schedule import segment
from storage.state.identity import decode_identity
from tests.fuzz import disk_targets, text_targets, wire_targets
from tests.fuzz.all_targets import TARGETS
from tests.fuzz.disk_targets import SEED
from tests.fuzz.mending import batch_crcs, whole_batches, whole_frames, whole_items
from tests.fuzz.reference import read_frames, read_items
from tests.fuzz.run import arcs_of, fault_in, shrink, smallest_cover
from tests.fuzz.seeds import FRAMES, ITEM, batch_of, inputs_of, seeds
from tests.fuzz.target import Target, TooLargeError, TooSlowError, execute

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (
    *("bridges", "delay_client", "delay_protocol", "delay_server", "delay_transport"),
    *("delaywheel", "meta_server", "sender", "storage"),
)
DECODES: Final = re.compile(
    r"(decode|scan|read|parse|walk|check|key_of|load|verify|dump|cut|list)_\w+"
    r"|[a-z]\w*_(of_columns|fault)"
)
"""Names of functions that take apart what came from outside."""

EXEMPT: Final = {
    "delay_client.exchange.batches.cut_batches": "cuts what the caller sends",
    "delay_protocol.nodes.clocks.clock_fault": "compares numbers",
    "delay_transport.http.shared_secret.read_secrets": "divides a file of the operator into lines",
    "delay_transport.http.convert.decode_body": "a part of convert_request, which has a target",
    "delay_transport.http.server_tokens.read_server_tokens": "divides a file of the operator",
    "delay_transport.settings.watched_file.read_trusted": "reads a file, and takes nothing apart",
    "delay_transport.http.access.check_exposure": "looks at settings that were read already",
    "meta_server.admin.rules.check_cluster": "looks up a name that a struct of the API has",
    "meta_server.groups.broker_groups.check_room": "counts rows",
    "meta_server.admin.rules.check_groups": "looks at names that a struct of the API has",
    "meta_server.admin.rules.check_subject": "the same",
    "meta_server.admin.rules.check_group_count": "compares two numbers",
    "meta_server.groups.broker_groups.check_place": "compares addresses that are checked",
    "meta_server.sql.databases.read_url": "reads a setting of the operator",
    "meta_server.sql.transfer.read_export": "reads lines of JSON of the operator's own file",
    "delay_server.controls.rules_file.read_rules": "reads the file that decode_controls decodes",
    "delay_transport.http.tokens.read_tokens": "reads the file that decode_tokens takes apart",
    "storage.disk.disk.read_small": "hands on the bytes that decoders with targets take apart",
    "storage.readers.manifest.read_manifest": "puts together what decoders with targets read",
    "sender.settings.config.check_groups": "looks at settings that were read already",
}
"""Functions with such a name that need no target, and why."""


def public_decoders() -> Iterator[str]:
    """Yield module and name of every public function whose name says that it decodes."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for node in ast.parse(path.read_bytes()).body:
                names = []
                if isinstance(node, ast.FunctionDef):
                    is_command = package == "delaywheel" and node.decorator_list
                    names = [] if is_command else [node.name]
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
                    # Two functions that codec_of made.
                    names = [one.id for one in node.targets[0].elts if isinstance(one, ast.Name)]
                yield from (f"{module}.{name}" for name in names if DECODES.fullmatch(name))


def test_every_public_decoder_has_a_target_or_a_reason() -> None:
    decoders = {decoder for target in TARGETS.values() for decoder in target.decoders}
    found = set(public_decoders())
    covered = {name for name in found if pkgutil.resolve_name(name) in decoders}
    assert sorted(found - covered - EXEMPT.keys()) == []
    assert sorted(EXEMPT.keys() - found) == []
    assert sorted(EXEMPT.keys() & covered) == []


# Decoders with one rule taken out.


def _scan_without_crc(body: bytes, sink: ItemScan, **limits: int) -> None:
    scan_items(body, sink, **limits)
    sink.crc_ok = [True] * len(sink)


def _scan_that_leaves_a_rest(body: bytes, sink: ItemScan, **limits: int) -> None:
    try:
        scan_items(body, sink, **limits)
    except Exception:
        sink.starts.append(0)
        raise


class _Impatient(FrameDecoder):
    """Takes a part of a frame for the end of the stream."""

    def finish(self) -> None:
        if self.buffered > 11:
            super().finish()


def _short_remarks(body: bytes) -> dict[bytes, tuple[int, str]]:
    found = decode_send_reply(body)
    return {name: (code, remark[:3]) for name, (code, remark) in found.items()}


def _hello_of_msgspec(body: bytes) -> object:
    return msgspec.msgpack.decode(body)


def _identity_by_halves(data: bytes, *, path: str) -> object:
    struct.unpack_from("<16sQHHHH", data, 64)
    return decode_identity(data, path=path)


def _names_only(*arguments: Any) -> columns.Columns:  # noqa: ANN401 - those of decode_columns
    return columns.Columns(columns._decode_names(arguments[-1])[0], {})


def _no_fault(*_: object) -> None:
    return None


def _facts_without_the_last(found: columns.Columns) -> FactBlock:
    block = filed_facts_of(found)
    return block.slice(0, len(block) - 1)


def _stated_without_the_last(header: BatchHeader, found: columns.Columns) -> FactBlock | None:
    block = facts_stated(header, found)
    return None if block is None else block.slice(0, len(block) - 1)


@pytest.mark.parametrize(
    ("name", "owner", "attribute", "broken"),
    [
        ("items", wire_targets, "scan_items", _scan_without_crc),
        ("items", wire_targets, "scan_items", _scan_that_leaves_a_rest),
        ("items", wire_targets, "tags_are_text", lambda _: True),
        ("one_item", wire_targets, "item_subject", lambda item: item[27:40]),
        ("one_item", wire_targets, "qmq_item_fault", _no_fault),
        ("attributes", wire_targets, "walk_attributes", lambda *_, **__: (0, None)),
        ("frames", wire_targets, "FrameDecoder", _Impatient),
        ("send_reply", wire_targets, "decode_send_reply", _short_remarks),
        ("subjects", wire_targets, "subject_fault", _no_fault),
        ("hello", wire_targets, "decode_hello", _hello_of_msgspec),
        ("batch", batches, "_part_fault", _no_fault),
        ("batch_header", batches, "_SEQUENCE_MAX", 2**64),
        ("columns", disk_targets, "decode_columns", _names_only),
        ("columns", columns, "_check_indexes", _no_fault),
        ("identity", disk_targets, "decode_identity", _identity_by_halves),
        ("facts", segment, "filed_facts_of", _facts_without_the_last),
        ("message_log", disk_targets, "facts_stated", _stated_without_the_last),
        ("item_reader", item_reader, "qmq_item_fault", _no_fault),
        ("addresses", text_targets, "parse_server", lambda text: (text, 1)),
    ],
)
def test_a_decoder_without_one_of_its_rules_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, owner: object, attribute: str, broken: object
) -> None:
    monkeypatch.setattr(owner, attribute, broken)
    assert any(fault_in(TARGETS[name], data) for data in inputs_of(name))


def target_of(run: Callable[[bytes], Any]) -> Target:
    return Target(name="t", run=run, decoders=(), packages=("storage",))


def test_an_input_that_takes_too_much_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TooLargeError, match="for 1 of input"):
        execute(target_of(lambda data: bytes(1_000_000 * len(data))), b"x", measure_memory=True)
    execute(target_of(lambda data: bytes(100_000 * len(data))), b"x", measure_memory=True)

    def dawdle(_: bytes) -> None:
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass

    execute(target_of(dawdle), b"x")
    monkeypatch.setattr("tests.fuzz.target.SECONDS_BASE", 0.01)
    with pytest.raises(TooSlowError, match="for 1 bytes"):
        execute(target_of(dawdle), b"x")


def test_an_input_that_breaks_is_made_small() -> None:
    def run(data: bytes) -> None:
        assert not data.startswith(b"a") or b"b" not in data[3:]

    target = target_of(run)
    data = b"a" + b"x" * 40 + b"b" + b"y" * 40
    fault = fault_in(target, data)
    assert fault is not None
    assert fault.startswith("AssertionError in test_targets.py:")
    assert shrink(target, data, fault) == b"a\0\0b"


def test_the_smallest_inputs_that_reach_everything_are_kept() -> None:
    code = target_of.__code__
    first, second, third = (code, 1, 2), (code, 2, 3), (code, 3, 4)
    reached = {b"long": {first, second}, b"ab": {first}, b"c": {first}, b"def": {third, second}}
    assert smallest_cover(reached) == [b"def", b"c"]
    assert smallest_cover({}) == []


def test_the_steps_of_an_input_are_those_in_the_packages_of_its_target() -> None:
    target = TARGETS["send_reply"]
    short, long = arcs_of(target, b""), arcs_of(target, seeds("send_reply")[0])
    assert short < long
    assert all("/delay_protocol/" in arc[0].co_filename for arc in short - arcs_of(target, b""))


# Mending.


def test_what_is_whole_already_is_mended_to_itself() -> None:
    stream = b"".join(FRAMES)
    assert whole_frames(stream) == stream
    assert whole_items(ITEM * 2) == ITEM * 2
    for kind in RecordKind:
        data = batch_of(kind)[1]
        assert batch_crcs(data, seed=SEED) == data
        assert whole_batches(data, seed=SEED, kinds=[*RecordKind] * 2)


@pytest.mark.parametrize("filler", [b"\0", b"\x01", b"\x7f", b"\xff", b"\x05\0"])
def test_mended_bytes_are_whole_whatever_they_were(filler: bytes) -> None:
    data = (filler * 600)[:600]
    frames = read_frames(whole_frames(data), 1 << 20)
    assert frames.frames
    assert frames.fault is None
    items = read_items(whole_items(data), 1000)
    assert items.items
    assert items.fault_at is None
    assert all(item.crc == item.computed_crc for item in items.items)
