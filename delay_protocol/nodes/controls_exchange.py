"""NODE_CONTROLS (1012): a delay server learns what an operator has said at its meta server. Ours.

    node                                                    meta server
    NODE_REGISTER …                                 ---->
    NODE_CONTROLS {has, told: none}                 ---->
                                                    <----   {document}, at once
    NODE_CONTROLS {has: (A, 7), told: (A, 7)}       ---->   … nothing until there is another one
                                                    <----   {document}, or nothing after HOLD_S
    NODE_CONTROLS …                                 ---->

One such request waits at the meta server at a time, so a change is told within a round trip, and
what the request says tells an operator which node goes by which version. It is sealed as
NODE_REGISTER is (node_auth.py), and only whoever has registered on the connection may ask.

Bodies are msgpack maps; keys that a reader does not know are skipped.
"""

from typing import Annotated, Final
from uuid import UUID

import msgspec

from delay_protocol.basics.errors import MalformedMetaError
from delay_protocol.nodes.controls import Controls, ControlsError, decode_controls, encode_controls
from delay_protocol.nodes.packed import pack, unpack
from delay_protocol.nodes.registration import REASON_LENGTH_MAX

HOLD_S: Final = 20.0
"""Seconds after which a meta server answers that there is nothing new."""
TOLD_BYTES_MAX: Final = 256 * 1024
"""Bytes of the document that a meta server may keep: it is told to every node at every change. A
thousand rules of subjects with 150 bytes fit."""
ASKED_BYTES_MAX: Final = 8 * 1024
"""Bytes of a request; a larger one is refused unread."""
REPLY_BYTES_MAX: Final = TOLD_BYTES_MAX + 1024
"""Bytes of an answer."""


class ControlsId(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which document it is."""

    store: UUID
    """Of which meta server's store."""
    version: Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class NodeControls(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A delay server says by which controls it goes, and asks for others."""

    has: ControlsId | None
    """What holds there; None: rules that the node has made itself, or none."""
    told: ControlsId | None
    """What it was told last since it connected: it is answered once there is another."""
    keeps: Annotated[str, msgspec.Meta(max_length=REASON_LENGTH_MAX)] = ""
    """Why it does not go by what it was told; empty if it does."""


class NodeControlsReply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a meta server has to say."""

    document: Annotated[bytes, msgspec.Meta(max_length=TOLD_BYTES_MAX)] | None = None
    """JSON of `Controls`, with its store; None: as told before."""


_ASKED_DECODER = msgspec.msgpack.Decoder(NodeControls)
_REPLY_DECODER = msgspec.msgpack.Decoder(NodeControlsReply)


def id_of(controls: Controls) -> ControlsId | None:
    """Return which document of a meta server this is; None where none has made it."""
    if not isinstance(controls.store, UUID):
        return None
    return ControlsId(store=controls.store, version=controls.version)


def encode_node_controls(asked: NodeControls) -> bytes:
    """Return the body of a NODE_CONTROLS; raise LocalProtocolError for what does not fit."""
    return pack(_ASKED_DECODER, asked, ASKED_BYTES_MAX)


def decode_node_controls(body: bytes) -> NodeControls:
    """Return what a NODE_CONTROLS says; raise MalformedMetaError."""
    return unpack(_ASKED_DECODER, body, ASKED_BYTES_MAX)


def document_of(controls: Controls, store: UUID) -> bytes:
    """Return the document as a meta server with this store tells it; raise ControlsError."""
    document = encode_controls(msgspec.structs.replace(controls, store=store))
    if len(document) > TOLD_BYTES_MAX:
        raise ControlsError(
            "", f"all rules together would have {len(document)} bytes, at most {TOLD_BYTES_MAX}"
        )
    return document


def encode_node_controls_reply(document: bytes | None) -> bytes:
    """Return the body of an answer to NODE_CONTROLS; None: there is nothing new."""
    return msgspec.msgpack.encode(NodeControlsReply(document=document))


def decode_node_controls_reply(body: bytes) -> Controls | None:
    """Return what an answer to NODE_CONTROLS says; raise MalformedMetaError."""
    document = unpack(_REPLY_DECODER, body, REPLY_BYTES_MAX).document
    if document is None:
        return None
    try:
        controls = decode_controls(document)
    except ControlsError as error:
        raise MalformedMetaError(f"controls: {error}") from error
    if id_of(controls) is None:
        raise MalformedMetaError("controls that do not say of which store they are")
    return controls
