"""What a fuzzer begins with: well-formed inputs of every target, made by our own encoders.

An encoder that forgets a field that may be missing makes inputs in which nobody misses it. So
bodies with such fields are made by msgspec itself.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Final

import msgspec
import numpy as np

from delay_client.messages.envelope import encode_envelope
from delay_protocol.messages.items import Item, encode_attributes, encode_item
from delay_protocol.messages.send_message import encode_send_reply
from delay_protocol.meta.requests import (
    AcquireMeta,
    BrokerRegister,
    BrokerRequestType,
    BrokerRole,
    BrokerState,
    ClientRegister,
    encode_acquire_meta,
    encode_broker_register,
    encode_client_register,
)
from delay_protocol.nodes.auth import NONCE_SIZE, Challenge, encode_challenge
from delay_protocol.nodes.following import (
    encode_batches_head,
)
from delay_protocol.nodes.group_changes import (
    Alter,
    HandOver,
    NodeNews,
    NodeWatch,
    Vote,
    WatchReply,
    encode_group_change,
    encode_node_watch,
)
from delay_protocol.nodes.registration import (
    NodeRole,
    Phase,
    Told,
    encode_node_register,
)
from delay_protocol.receivers.delivering import (
    Settled,
    Verdict,
    encode_deliver_head,
    encode_settle,
    encode_settle_reply,
)
from delay_protocol.receivers.masters import ReceiverRegister, encode_receiver_register
from delay_protocol.wire.frames import Frame, encode_request, encode_response
from delay_protocol.wire.hello import Hello, encode_hello
from delay_server.settings.config import DelayServerConfig
from delay_transport.settings.settings_file import sections
from meta_server.admin.api import API
from storage.batch.batches import Codec, encode_batch, file_seed
from storage.batch.columns import KINDS_WITH_ITEMS, LAYOUTS, RecordKind, encode_columns
from storage.batch.dead_rows import DeadNote, encode_note
from storage.batch.file_header import FileHeader, LogKind, encode_file_header
from storage.disk.spans import SegmentKey, Span
from storage.node.snapshot import checkpoint_of_copy, encode_copy
from storage.readers.manifest import encode_manifest, read_manifest
from storage.state.checkpoint import Checkpoint, EpochStart, RetiredFile, SegmentState
from storage.state.durable_end import DurableEnd, encode_slot
from storage.state.identity import Identity, encode_identity
from tests.delay_protocol.messages.test_items import TAGGED_ITEM_BYTES
from tests.delay_protocol.nodes.bodies import (
    BATCHES,
    BODIES,
    HEAD,
    RECORD,
    REGISTERED,
    REQUEST,
)
from tests.delay_protocol.wire.test_frames import VECTORS
from tests.fuzz.corpus import read_corpus
from tests.fuzz.dead_targets import DEAD_HEADER
from tests.fuzz.disk_targets import MINUTE, SEED
from tests.fuzz.wire_targets import NOW_MS as SENT_MS
from tests.storage.qmq_items import qmq_item
from tests.storage.small_logs import LOG_UUID, NOW_MS, OTHER_UUID
from tests.storage.store_rig import StoreRig


def _manifest() -> bytes:
    rig = StoreRig(1)
    rig.open()
    rig.split()
    rig.commit([NOW_MS, NOW_MS + 86_400_000])
    rig.file()
    rig.checkpoint()
    return encode_manifest(read_manifest(rig.disk, now_ms=NOW_MS))


# QMQ's own test vectors.

FRAMES: Final = tuple(bytes.fromhex(text) for text, _ in VECTORS.values())
ITEM: Final = FRAMES[0][24:]
REPLY_BODY: Final = FRAMES[2][24:]

_ATTRIBUTES: Final = {"qmq_createTime": "1700000000000", "k": "v", "": "", "é": "x" * 40}


_ELECTING: Final = msgspec.structs.replace(
    RECORD, epoch=2**63 - 1, master=None, in_sync={}, phase=Phase.ELECTING
)


def _edges() -> list[bytes]:
    """Return items in a row, in the second of which a size is one that it is not."""
    bodies = []
    # Of the subject, of the id and of the body.
    for place, size in ((25, 2), (30, 2), (34, 4)):
        at = len(ITEM) + place
        for number in (-(2 ** (8 * size - 1)), -1, 0, 2 ** (8 * size - 1) - 1):
            stated = number.to_bytes(size, "big", signed=True)
            body = ITEM * 3
            bodies.append(body[:at] + stated + body[at + size :])
    return bodies


def _answers() -> list[bytes]:
    requests = [Frame(10, 9, opaque, 0, 10, b"") for opaque in (1, 2, 3)]
    failures = [(b"m1", 6, "store error"), (b"m2", 2, ""), (b"m3", 5, "no"), (b"?", 1, "busy")]
    return [
        b"".join(encode_response(request, code=0) for request in requests),
        b"".join(
            encode_response(request, code=code)
            for request, code in zip(requests, (51, 52, 3), strict=True)
        ),
        encode_response(requests[0], code=0, body=encode_send_reply(failures)),
        encode_response(requests[1], code=0, body=b"\0"),
        encode_request(code=100, opaque=1, body=b"") + FRAMES[1],
    ]


def _peer_requests() -> list[bytes]:
    client = ClientRegister(subject="s1", client_type=1, client_id="h@@1", app_code="a")
    online = BrokerRegister(
        request_type=BrokerRequestType.ONLINE,
        group="g1",
        address="h:1",
        role=BrokerRole.MASTER,
        state=BrokerState.RW,
    )
    requests = [
        *(
            (0, encode_client_register(replace(client, subject=subject, client_type=kind)))
            for subject in ("s1", "p.x", "%RETRY%s2%g", "new", "a b")
            for kind in (1, 2, 4)
        ),
        *(
            (1, encode_broker_register(replace(online, **changed)))
            for changed in (
                {},
                {"request_type": BrokerRequestType.HEARTBEAT, "state": BrokerState.R},
                {"request_type": BrokerRequestType.OFFLINE},
                {"group": "g9", "role": BrokerRole.DELAY_MASTER, "address": "h:9"},
            )
        ),
        *(
            (2, encode_node_register(one))
            for one in (
                REQUEST,
                msgspec.structs.replace(REQUEST, incarnation=4),
                msgspec.structs.replace(REQUEST, node_id="n2", storage_uuid=OTHER_UUID),
                msgspec.structs.replace(REQUEST, group="g2"),
            )
        ),
        (3, encode_acquire_meta(AcquireMeta(hostname="h", serve_port=1))),
        (4, encode_challenge(Challenge(nonce=bytes(NONCE_SIZE)))),
        (5, encode_node_watch(NodeWatch())),
        *(
            (6, encode_group_change(change))
            for change in (
                Vote(epoch=2, last_epoch=1, end=5, applied=5),
                Alter(epoch=1, version=1, in_sync={REQUEST.node_id: REQUEST.storage_uuid}),
                HandOver(epoch=1, version=1, target=REQUEST.node_id),
            )
        ),
    ]
    receivers = [
        (7, encode_receiver_register(ReceiverRegister(name=name, patterns=patterns)))
        for name in ("r1", "g1", "a%b")
        for patterns in ((), ("orders.*", "paid"), ("p.*",), ("s1", "a*b"))
    ]
    requests = [*receivers, *requests]
    framed = [bytes([code]) + len(body).to_bytes(2, "big") + body for code, body in requests]
    *registered, watch, vote, alter, hand_over = framed[-10:]
    return [
        *(*framed, b"".join(framed[:6]), b"".join(registered)),
        registered[0] + registered[-1] * 2,
        registered[0] + watch * 2 + vote + alter + hand_over,
    ]


_ADDRESS_ANSWERS: Final = [
    b"\x00HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n127.0.0.1:20880",
    b"\x00HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n[::1]:5",
    b"\x03HTTP/1.0 200 OK\n\nmeta.example:1\n",
    b"\x00HTTP/1.1 503 no\r\ncontent-length: 0\r\n\r\n",
]


def _admin_requests() -> list[bytes]:
    bodies: dict[str, tuple[bytes, ...]] = {
        "set_broker_group": (b'{"weight":7,"static":true}', b'{"address":"h:7"}'),
        "retire_broker_group": (b'{"lose_messages":true}',),
        "restore_broker_group": (b"{}",),
        "read_only_broker_group": (b'{"read_only":true}',),
        "set_broker": (b'{"hostname":"k","ip":"1.1.1.1","serve_port":5}',),
        "set_route": (b'{"groups":["g1"]}', b'{"groups":["g2","g1"]}'),
        "extend_route": (b'{"group":"g1","new_group":"g2"}',),
        "set_subject": (b"{}",),
    }
    parts = {"role": b"MASTER", "subject": b"s1", "pattern": b"p.*", "node": b"n1"}
    found = []
    for number, operation in enumerate(API.operations):
        path = b"\0".join(parts.get(name, b"g1") for name in operation.path_type.__struct_fields__)
        query = b"limit\x005" if "limit" in operation.query_type.__struct_fields__ else b""
        found += [
            bytes([number]) + path + b"\0\0" + query + b"\0\0" + body
            for body in bodies.get(operation.name, (b"",))
        ]
    return found


def batch_of(
    kind: RecordKind,
    *,
    count: int = 2,
    base_sequence: int = 1,
    previous_crc: int = 0,
    seed: int = SEED,
    codec: Codec = Codec.RAW,
    behind: bytes = b"",
) -> tuple[int, bytes]:
    """Return CRC and bytes of a batch of two plausible records; behind: what follows each item."""
    items = [
        qmq_item(NOW_MS + 1000 * place, b"s", b"m%d" % place) + behind for place in range(count)
    ]
    arrays: dict[str, Any] = {
        name: np.arange(1, count + 1).astype(dtype) for name, dtype in LAYOUTS[kind]
    }
    special: dict[str, Any] = {
        "sequence": np.arange(base_sequence, base_sequence + count),
        "due_ms": [NOW_MS + 1000 * place for place in range(count)],
        "size": [len(item) for item in items],
        "subject": [0] * count,
        "target": [0] * count,
        "reason": [1] * count,
        "minute": [MINUTE] * count,
        "start_minute": [MINUTE + place for place in range(count)],
        "span": [int(Span.MINUTE)] * count,
    }
    arrays |= {
        name: np.array(special[name], dtype) for name, dtype in LAYOUTS[kind] if name in special
    }
    indexed = {"subject", "target"} & arrays.keys()
    header, buffers = encode_batch(
        seed=seed,
        kind=kind,
        epoch=1,
        base_sequence=base_sequence,
        count=count if arrays else 1,
        floor_minute=MINUTE,
        append_ms=NOW_MS,
        previous_crc=previous_crc,
        columns=encode_columns(kind, [b"s", b"other"] if indexed else [], arrays),
        blob=items if kind in KINDS_WITH_ITEMS else [],
        codec=codec,
    )
    return header.crc, b"".join(buffers)


def _chain(
    kinds: Sequence[RecordKind],
    *,
    seed: int = SEED,
    codec: Codec = Codec.RAW,
    behind: bytes = b"",
) -> bytes:
    parts = []
    crc, sequence = 0, 1
    for kind in kinds:
        crc, data = batch_of(
            kind,
            base_sequence=sequence,
            previous_crc=crc,
            seed=seed,
            codec=codec,
            behind=behind,
        )
        parts.append(data)
        sequence += 2 if LAYOUTS[kind] else 1
    return b"".join(parts)


def _file(kind: LogKind, span: Span = Span.NONE) -> bytes:
    return encode_file_header(
        FileHeader(
            kind=kind,
            log_uuid=LOG_UUID,
            first_sequence=0 if span else 1,
            span=span,
            start_minute=MINUTE if span else 0,
        )
    )


def _images(kind: LogKind, kinds: Sequence[RecordKind], span: Span = Span.NONE) -> list[bytes]:
    """Return files of some batches, raw and compressed, whole and with damage in the middle."""
    whole = _file(kind, span) + _chain(kinds)
    packed = _file(kind, span) + _chain(kinds, codec=Codec.LZ4)
    return [whole, packed, whole[:150] + b"?" + whole[151:], whole[:-7]]


def _levels(images: Sequence[bytes], head: bytes = b"", *, step: int = 1) -> list[bytes]:
    return [bytes([level * step]) + head + image for image in images for level in range(3)]


_CHECKPOINT: Final = Checkpoint(
    written_ms=NOW_MS,
    sequence=7,
    floor_minute=MINUTE,
    hour_mark=MINUTE + 180,
    day_mark=MINUTE + 4320,
    seals_length=100,
    segments=(
        SegmentState(
            start=MINUTE - MINUTE % 60,
            span=int(Span.HOUR),
            rows=3,
            length=400,
            last_sequence=5,
            last_crc=9,
            earliest_due_ms=NOW_MS,
            facts=1,
            facts_length=200,
            facts_last_crc=8,
            last_fact=6,
        ),
    ),
    retired=(RetiredFile(path="schedule_log/20131127T0000Z.hour", since_ms=NOW_MS),),
    quarantined=("schedule_log/20131127T0000Z.minute",),
)

_COPY: Final = checkpoint_of_copy(
    msgspec.structs.replace(_CHECKPOINT, epochs=(EpochStart(1, 1),)), 12345
)

_IDENTITY: Final = encode_identity(
    Identity(
        cluster="c",
        group="g",
        node_id="n",
        log_uuid=LOG_UUID,
        storage_uuid=OTHER_UUID,
        incarnation=3,
    )
)


def _slots() -> bytes:
    end = DurableEnd(
        next_sequence=9, file_sequence=1, position=500, last_crc=7, epoch=1, floor_minute=MINUTE
    )
    slots = [encode_slot(end, log_uuid=LOG_UUID, counter=counter) for counter in (4, 5)]
    return b"".join(slot.ljust(512, b"\0") for slot in slots)


_NOTE: Final = DeadNote(
    old_sequence=1, old_minute=MINUTE, dead_ms=NOW_MS, reason='{"code":3,"group":"g1"}'
)

_MESSAGES: Final = (
    RecordKind.EPOCH_START,
    RecordKind.MESSAGE,
    RecordKind.FLOOR,
    RecordKind.DEAD,
    RecordKind.FACTS,
)

_TOML: Final = (
    b'[node]\ndata_dir = "data"\n[brokers]\ng1 = "127.0.0.1:20881"\n',
    b'[brokers.g2]\naddress = "[::1]:1"\nweight = 2\n[wheel]\nslot_ms = 16\n',
    b"[sender]\nbackoff_ms_max = 1e400\n[storage]\nfact_sync_ms_max = 20\n",
    b"[nodes]\nx = 1979-05-27T07:32:00Z\n",
    b"a = " + b"[" * 900,
    b"a = " + b"9" * 900,
)


def seeds(target: str) -> list[bytes]:
    """Return the first inputs of a target."""
    return [*_SEEDS.get(target, []), b""]


def inputs_of(target: str) -> list[bytes]:
    """Return all inputs of a target that are known: its corpus, and its first ones."""
    return [*(entry.data for entry in read_corpus(target)), *seeds(target)]


_SEEDS: Final[dict[str, list[bytes]]] = {
    "snapshots": [
        encode_copy(_COPY),
        encode_copy(msgspec.structs.replace(_COPY, first_sequence=1)),
        encode_copy(msgspec.structs.replace(_COPY, epochs=())),
        encode_copy(_CHECKPOINT),
    ],
    "frames": [
        *(bytes([200, place]) + frame for place, frame in enumerate(FRAMES)),
        b"\xff\x02" + b"".join(FRAMES),
        b"\x10\x05" + FRAMES[1] + FRAMES[1][:11],
    ],
    "items": [
        b"\x07" + ITEM + TAGGED_ITEM_BYTES + TAGGED_ITEM_BYTES,
        b"\x01" + TAGGED_ITEM_BYTES * 3,
        b"\x03" + TAGGED_ITEM_BYTES.replace(b"t1", b"t\xff") + TAGGED_ITEM_BYTES[:-1] + b"?",
        b"\x07" + b"".join(encode_item(Item(2, 1, 2, "s", f"m{n}")) for n in range(5)),
        *(b"\x07" + body for body in _edges()),
        # Tags that are text only together, or only the first of which is.
        *(
            b"\x01" + TAGGED_ITEM_BYTES.replace(b"\x01\0\x02t1", b"\x02" + tags)
            for tags in (b"\0\x01\xc3\0\x01\xa4", b"\0\xff" + b"a" * 255 + b"\0\x01\xff")
        ),
    ],
    "one_item": [ITEM, TAGGED_ITEM_BYTES, encode_item(Item(3, 1, 2, "é", "m", (), _ATTRIBUTES))],
    "attributes": [
        bytes([15, 255]) + encode_attributes(_ATTRIBUTES),
        bytes([1, 1]) + encode_attributes(_ATTRIBUTES),
    ],
    "send_reply": [
        REPLY_BODY,
        REPLY_BODY * 2,
        encode_send_reply([(b"m1", 5, "é"), (b"x", 0, "")]),
        # Sizes that are negative, or too large.
        *(
            id_size + b"m1" + bytes(4) + remark_size
            for id_size in (b"\xff\xff", b"\x80\0", b"\0\2", b"\0\3")
            for remark_size in (b"\0\0", b"\xff\xff", b"\0\1")
        ),
    ],
    "subjects": [
        b"boarding",
        b"%RETRY%boarding%desk",
        b"%DEAD_RETRY%boarding%desk",
        "a/b c\u2003é".encode(),
    ],
    "hello": [
        encode_hello(Hello(group="g", epoch=7, node_id="n")),
        msgspec.msgpack.encode({"group": "", "epoch": 7, "node_id": "é", "log_uuid": "u"}),
        b"\x81\xa1x" + b"\x91" * 2000,
    ],
    "meta_client": [
        *(b"\0" + FRAMES[place][24:] for place in (3, 4)),
        b"\0" + FRAMES[3][24:] + FRAMES[4][24:],
        # A route of -1 groups.
        b"\0" + FRAMES[4][24:41] + b"\xff\xff",
        b"\1"
        + b"\0".join(
            b"subject %RETRY%a%g clientTypeCode +02 clientId h@@1 appCode a consumerGroup g "
            b"requestType -1 clientLDC r".split()
        ),
        b"\1"
        + b"\0".join(
            b"subject s subject t clientTypeCode 128 requestType 2147483648 \xff \xff".split()
        ),
    ],
    "meta_broker": [FRAMES[place][24:] for place in (5, 6, 7)],
    "nodes": [
        *(msgspec.msgpack.encode(body.example) for body in BODIES.values()),
        *map(
            msgspec.msgpack.encode,
            (
                msgspec.structs.replace(REQUEST, told=Told(record=_ELECTING, nodes=("n1", "n2"))),
                Challenge(nonce=bytes(32)),
                msgspec.structs.replace(
                    REGISTERED, role=NodeRole.SLAVE, record=_ELECTING, is_retired=True
                ),
                WatchReply(news=NodeNews(record=_ELECTING, members={}, vote_epoch=2)),
            ),
        ),
        b"\x81\xa1x" + b"\x91" * 2000,
    ],
    "heads": [
        encode_batches_head(HEAD) + BATCHES,
        encode_batches_head(HEAD._replace(behind=HEAD.first)),
        bytes(8 * len(HEAD)) + BATCHES,
        encode_batches_head(HEAD)[:-1],
        encode_deliver_head([5, 6], [1, 2], [3, 0]) + b"abc",
        encode_settle(
            [
                Settled(5, Verdict.DONE),
                Settled(6, Verdict.RELEASE),
                Settled(7, Verdict.LATER, b"item"),
                Settled(8, Verdict.REFUSED, b"why"),
            ]
        ),
        encode_settle_reply(2, 1_700_000_000_000),
    ],
    "envelope": [
        encode_attributes(encode_envelope("text", {"a": "1"}, "text/plain")),
        encode_attributes(encode_envelope(b"\xff\x00")),
        encode_attributes({"body#part0": "x", "body#part1": "y", "h:A": "1", "h:": "2"}),
        encode_attributes({"body": "=", "dw_encoding": "base64"}),
    ],
    "admission": [
        b"".join(
            encode_item(Item(2, SENT_MS, SENT_MS + 5000, "s", f"m{n}", (), {"k": "v"}))
            for n in range(4)
        ),
        encode_item(Item(2, SENT_MS, SENT_MS, "s", "m", (), {f"k{n}": "v" * n for n in range(9)})),
        encode_item(Item(6, SENT_MS, SENT_MS, "s", "m", ("t", "é"))) + TAGGED_ITEM_BYTES,
    ],
    "exchange": [bytes([mode]) + answer for answer in _answers() for mode in (2, 7)],
    "file_header": [_file(LogKind.MESSAGE_LOG), _file(LogKind.SCHEDULE_LOG, Span.MINUTE)],
    "batch_header": [
        *(batch_of(kind)[1][:80] for kind in RecordKind),
        batch_of(RecordKind.MESSAGE, base_sequence=2**63 - 2)[1][:80],
    ],
    "columns": [
        bytes([place, 2]) + batch_of(kind)[1][80:]
        for place, kind in enumerate(RecordKind)
        if kind not in KINDS_WITH_ITEMS
    ]
    + [
        bytes([place, 2])
        + encode_columns(kind, [b"s"], {name: np.zeros(2, dtype) for name, dtype in LAYOUTS[kind]})
        for place, kind in enumerate(RecordKind)
        if kind in KINDS_WITH_ITEMS
    ]
    + [bytes([0, 1]) + b"\1\0\1\0s\0\0\0" + bytes(20) + b"\1\0"],
    "batch": _levels(
        [
            *(batch_of(kind)[1] for kind in RecordKind),
            batch_of(RecordKind.MESSAGE, count=8, codec=Codec.LZ4)[1],
            batch_of(RecordKind.MESSAGE)[1][:-1] + b"?",
        ]
    ),
    "batch_walk": _levels([_chain(_MESSAGES), _chain(_MESSAGES)[:-9], b"x" + _chain(_MESSAGES)]),
    "copied_batches": _levels([_chain(_MESSAGES), _chain(_MESSAGES)[:-9]]),
    "identity": [_IDENTITY],
    "durable_end": [bytes([mode]) + _slots() for mode in range(4)],
    "checkpoint": [bytes([1]) + msgspec.json.encode(_CHECKPOINT), b"\x01{}"],
    "chained_file": _levels(
        _images(LogKind.SEALS, (RecordKind.SEALS, RecordKind.SEALS))
        + _images(LogKind.SEALS, (RecordKind.ROWS, RecordKind.MESSAGE))
    ),
    "seals": _levels(_images(LogKind.SEALS, (RecordKind.SEALS, RecordKind.SEALS))),
    "segment": [
        bytes([level + 3 * span]) + image
        for span in range(3)
        for level in range(3)
        for image in _images(LogKind.SCHEDULE_LOG, (RecordKind.ROWS, RecordKind.ROWS), Span.MINUTE)
    ],
    "facts": _levels(
        _images(LogKind.DISPATCH_LOG, (RecordKind.FACTS, RecordKind.FACTS), Span.MINUTE)
    ),
    "message_log": _levels(
        [
            len(one).to_bytes(2, "big") + one + two
            for one in _images(LogKind.MESSAGE_LOG, _MESSAGES)
            for two in (b"", _file(LogKind.MESSAGE_LOG) + _chain((RecordKind.MESSAGE,)))
        ],
        b"\x02\x05\x13",
    ),
    "item_reader": [b"\x02\0\0\x37\0\x01\0\x20\0" + qmq_item(0, b"s", b"m") * 2],
    "names": [
        SegmentKey(MINUTE, Span.MINUTE).name.encode(),
        SegmentKey(MINUTE - MINUTE % 1440, Span.DAY).name.encode(),
        b"00000000000000000042.log",
    ],
    "inspect": [
        bytes([choice + 8 * level]) + image
        for level in range(3)
        for choice, image in enumerate(
            (
                _images(LogKind.MESSAGE_LOG, _MESSAGES)[0],
                _images(LogKind.SCHEDULE_LOG, (RecordKind.ROWS,), Span.MINUTE)[0],
                _images(LogKind.DISPATCH_LOG, (RecordKind.FACTS,), Span.MINUTE)[0],
                _images(LogKind.MESSAGE_LOG, (RecordKind.FACTS, RecordKind.CANCEL))[0],
                _images(LogKind.SEALS, (RecordKind.SEALS,))[0],
                _file(LogKind.CHECKPOINT) + bytes(8) + b"{}",
                _slots(),
                _IDENTITY,
            )
        )
    ],
    "config_file": [*_TOML, b'[node]\ndata_dir = "d"\n[audit]\nkeep_ms = 3600000\n[push]\n'],
    "meta_peers": _peer_requests(),
    "meta_admin": _admin_requests(),
    "discovery": _ADDRESS_ANSWERS,
    "meta_address": _ADDRESS_ANSWERS,
    "http_access": [
        b"localhost:8080\0http://localhost:8080\0same-origin",
        b"[::1]:80\0http://evil.example\0cross-site",
        b"10.0.0.5\0null",
        b"rebound.example:8080",
    ],
    "tokens": [
        b'{"tokens":[{"name":"alice","role":"admin","sha256":"' + b"0a" * 32 + b'"}]}',
        b"{}",
    ],
    "controls": [
        b'\x00{"version":3,"groups":{"g1":{"paused":true}},"subjects":{"a.*":{"paused":true}}}',
        b'\x01{"paused":true}',
        b'\x02{"weight":2.5,"rate_per_s":0.01}',
        b"\x03order.*",
    ],
    "sent_controls": [
        b'{"store":"00000000-0000-0000-0000-00000000000a","version":2}',
        b'{"store":"00000000-0000-0000-0000-00000000000a","subjects":{"*":{"paused":true}}}',
    ],
    "dead_letters": _levels(
        [
            head + _chain(kinds, seed=file_seed(DEAD_HEADER), behind=note) + tail
            for head in (encode_file_header(DEAD_HEADER),)
            for kinds in ((RecordKind.ROWS,), (RecordKind.ROWS, RecordKind.ROWS))
            for note in (encode_note(_NOTE), b"", encode_note(_NOTE)[:-1] + b"?")
            for tail in (b"", b"torn")
        ]
    ),
    "dead_reason": [
        (
            b'{"code":3,"group":"g1","tries":4,"refused":3,"first_ms":1,"last_ms":2,'
            b'"refusals":[["g1",3,1],["g2",3,2]]}'
        ),
        b'{"more":' + b"[" * 500,
        b"subject_not_assigned",
    ],
    "manifest": [
        _manifest(),
        b'{"schema":2}',
        b'{"schema":1,"more":' + b"[" * 2000,
    ],
    "promise_file": [b'{"epoch":7,"told":{"record":{}}}', b'{"epoch":0}', b"{}", b""],
    "controls_file": [b'{"version":1,"subjects":{"*":{"paused":true},"b":{}}}', b"{}", b""],
    "overrides": [
        b"wheel.slot_ms=32\0brokers.g2=[::1]:5\0node.group=x",
        b"delay_transport.backoff_ms_max=inf",
        b"log.level=debug\0http.address=0.0.0.0:0",
    ],
    "addresses": [
        b"127.0.0.1:20801",
        b"[::1]:20801",
        b"host.example:1",
        b"a:0",
        b"x" * 63 + b".a:1",
    ],
    "parameters": [
        b"\x001h30m 2.5s",
        b"\x00500ms",
        b"\x012026-12-24T18:00:00+01:00",
        b"\x02k=v=w",
    ],
}


def tokens(target: str) -> list[bytes]:
    """Return words that the fuzzer may put into inputs of a target."""
    return _TOKENS.get(target, [])


def _setting_words() -> list[bytes]:
    words = {"brokers", "address", "weight"}
    for name, section in sections(DelayServerConfig).items():
        words |= {name, f"[{name}]\n", *(setting.name for setting in fields(section))}
    return [word.encode() for word in sorted(words)]


_ADDRESS_WORDS: Final = [b"content-length", b"transfer-encoding: chunked", b"\r\n\r\n", b"[::1]:1"]

_CONTROLS_WORDS: Final = [
    *(b'"version":', b'"groups":', b'"subjects":', b'"paused":', b'"rate_per_s":', b'"weight":'),
    *(b"null", b"true", b"1e999", b"-1", b"\\ud800", b"*"),
]

_TOKENS: Final[dict[str, list[bytes]]] = {
    "snapshots": [
        *(b'"copied":[7,1,2]', b'"segments":[', b'"epochs":[[1,1]]', b'"first_sequence":8'),
    ],
    "config_file": [*_setting_words(), b"inf", b"nan", b"0x", b"'''", b'"""', b"1979-05-27"],
    "overrides": [*_setting_words(), b"inf", b"nan", b"=[", b"={", b"true"],
    "checkpoint": [
        *(
            f'"{name}":'.encode()
            for name in (*Checkpoint.__struct_fields__, *SegmentState.__struct_fields__)
        ),
        b"[]",
        b"{}",
        b"9223372036854775807",
        b"1e999",
        b"\\ud800",
    ],
    "meta_client": [b"subject", b"clientTypeCode", b"requestType", b"clientLDC", b"\0", b"\x80\0"],
    "meta_peers": [b"subject", b"clientTypeCode", b"\0\1\0\2", b"\x80\0"],
    "meta_admin": [
        *(
            f'"{name}":'.encode()
            for operation in API.operations
            if operation.body_type is not None
            for name in operation.body_type.__struct_fields__
        ),
        *(b"null", b"true", b"[]", b"{}", b"9223372036854775807", b"1e999", b"\\ud800", b"after"),
    ],
    "discovery": _ADDRESS_WORDS,
    "meta_address": [*_ADDRESS_WORDS, b"HTTP/1.1 200", b"HTTP/1.1 100 Go on\r\n\r\n"],
    "dead_letters": [b"DWB1", b"DWLG"],
    "dead_reason": [b'"code":', b'"group":', b'"refusals":', b"null", b"1e999"],
    "manifest": [b'"schema":2', b'"span":"minute"', b'"segments":[', b'"faults":[', b'"sealed":['],
    "controls": _CONTROLS_WORDS,
    "controls_file": _CONTROLS_WORDS,
    "promise_file": [b'{"epoch":', b'"told":'],
    "sent_controls": [*_CONTROLS_WORDS, b'"store":'],
    "tokens": [b'"name":', b'"role":', b'"sha256":', b'"created":', b'"read"'],
    "nodes": [
        *sorted(
            {
                msgspec.msgpack.encode(name)
                for body in BODIES.values()
                for kind in (type(body.example),)
                for name in ("type", *kind.__struct_fields__, kind.__struct_config__.tag)
            }
        ),
        msgspec.msgpack.encode(str(LOG_UUID)),
        b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xc0",
        b"\xde",
    ],
    "heads": [(1).to_bytes(4, "big"), (1).to_bytes(8, "big")],
    "envelope": [b"\x00\x04body", b"#part0", b"dw_encoding", b"base64", b"dw_content_type", b"h:"],
    "hello": [b"\xa5group", b"\xa5epoch", b"\xa7node_id", b"\x83", b"\xcf", b"\xd9", b"\xda"],
    "parameters": [b"ms", b"min", b"T00:00:00", b"+00:00", b"W01", b"Z"],
    "inspect": [b"DWB1", b"DWLG", b"DWDE"],
}
