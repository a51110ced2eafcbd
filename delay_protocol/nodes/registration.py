"""NODE_REGISTER (1010): a delay server says which data it is, and learns its role. Ours, not QMQ's.

The body of the request is one msgpack map (NodeRegister); the answer is another, whose key `type`
tells NodeRegistered from Refused. Keys that a reader does not know are skipped, so keys may be
added.

A group's record is what replication depends on: who is master of which epoch, and which disks hold
every acknowledged message. It is changed by compare-and-set on (epoch, version) only, so what a
node was told is true until it is told a higher pair.
"""

from enum import Enum
from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec
from msgspec.msgpack import Decoder

from delay_protocol.nodes.controls import ControlsId
from delay_protocol.nodes.packed import codec_of

NODE_BODY_BYTES_MAX: Final = 96 * 1024
"""Bytes of a body: a larger one is refused unread. The largest record there can be has less, with
the members of its group."""
NAME_LENGTH_MAX: Final = 255
"""Characters of a name or an address."""
REPLICAS_MAX: Final = 16
"""Members that an in-sync set may have; three are the recommended group."""
REASON_LENGTH_MAX: Final = 1000
"""Characters of a reason."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
Address = Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)]
"""host:port, or empty where there is none."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
COUNTED_MAX: Final = 2**62
"""What a node may say of its starts and epochs, so that whoever counts on from there has room."""


class NodeRole(Enum):
    """What a node is in its group, as long as the record stays as it is."""

    MASTER = "master"
    """Accepts messages and sends them when they are due."""
    SLAVE = "slave"
    """Follows the master, and may become one; accepts nothing."""


class Phase(Enum):
    """Whether a group has a master."""

    ELECTING = "electing"
    """The epoch was counted up; nobody accepts before it has a master."""
    ACTIVE = "active"


class Master(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The one node that may accept messages in an epoch, as the process it was when chosen."""

    node_id: Name
    incarnation: Count
    """A restarted node is not the master any more, until the record says so anew."""


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is agreed of a delay group; changed by compare-and-set on (epoch, version) only."""

    epoch: Count
    """Counted up by every election, also of the same node."""
    version: Count
    """Counted up by every change, also by a refused one."""
    master: Master | None
    """None while electing."""
    in_sync: Annotated[dict[Name, UUID], msgspec.Meta(max_length=REPLICAS_MAX)]
    """Storage uuid by node id: the disks that hold every acknowledged message. A node with another
    disk is another replica."""
    min_isr: Annotated[int, msgspec.Meta(ge=1, le=REPLICAS_MAX)]
    """The in-sync set never gets smaller than this; with fewer nothing is accepted."""
    phase: Phase
    """active, or electing: then no node accepts."""


def is_older(record: GroupRecord, than: GroupRecord) -> bool:
    """Return True if a record is older, or another one with the same epoch and version."""
    pair, known = (record.epoch, record.version), (than.epoch, than.version)
    return pair < known or (pair == known and record != than)


Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Reason = Annotated[str, msgspec.Meta(max_length=REASON_LENGTH_MAX)]
"""A sentence for people; empty if there is nothing to say."""


class Stands(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a node stands in its group: as the master that it is, or to the master that it hears."""

    may_send: bool = False
    """True if it is the master, and all that may be elected have promised to vote for nobody else.
    """
    lacks_promises_s: Seconds | None = None
    """For how long it is a master that lacks promises, or whose disk hangs; None: it is none, or
    may send."""
    hears_nobody: bool = False
    """True if it is a master that was not acknowledged anything lately."""
    hears: Count = 0
    """The epoch of the master that it heard in the last 3 s; 0: it heard none."""
    hears_sender: bool = False
    """True if that one may send, as it says."""
    vote_in_s: Seconds = 0.0
    """After so long what it promised is over, if it does not hear its master again."""
    unfit: Reason = ""
    """Why another one in sync should be the master in its place; empty if it is fit."""
    behind: Reason = ""
    """Why another one that is fit is chosen before it; empty if there is no reason."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The newest that a node was told of its group, durable there or not."""

    record: GroupRecord
    nodes: Annotated[tuple[Name, ...], msgspec.Meta(max_length=REPLICAS_MAX)] = ()
    """All nodes of the group, in sync or not."""


Shown = Literal["RW", "R", "W", "NRW"]
"""The state in which producers see a group: the name of a BrokerState of QMQ's."""


class AppliedControls(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The controls that a node applies."""

    id: ControlsId | None = None
    """None: rules that no meta server has made, or none."""
    keeps: Reason = ""
    """Why it does not apply those that it was sent; empty if it does."""


class NodeRegister(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A delay server says who it is and what its disk holds."""

    cluster: Name
    group: Name
    node_id: Name
    log_uuid: UUID
    """Of the group's logs, alike on all replicas. A node with another one is refused if it has
    records."""
    storage_uuid: UUID
    """Of this data directory alone: a wiped disk is a new replica."""
    incarnation: Annotated[int, msgspec.Meta(ge=1, le=COUNTED_MAX)]
    """Number of this start of the node, fsynced before it speaks."""
    boot_id: UUID
    """Of this start alone, drawn at random: starts on two copies of one data directory have the
    same incarnation."""
    last_sequence: Count
    """Of its log, durable; 0: it is empty."""
    last_epoch: Annotated[int, msgspec.Meta(ge=0, le=COUNTED_MAX)] = 0
    """The newest epoch in its log; 0: it is empty. A group that the meta server does not know, or
    has forgotten, begins above it."""
    address: Address
    """host:port for producers, receivers, and the other nodes of its group."""
    http_address: Address
    """host:port for people and metrics; empty if it has none."""
    version: Annotated[str, msgspec.Meta(max_length=NAME_LENGTH_MAX)]
    """Of delaywheel."""
    told: Told | None = None
    """None: it was told nothing. A meta server whose store was set back learns by it what it lost,
    and whom to wait for."""
    replaces: UUID | None = None
    """The storage uuid of the directory that this one took the place of, in the same process or on
    the same disk; None: of none. It may register though that one was heard a moment ago."""
    committed: Count = 0
    """The last record that it knows to be committed; 0: none."""
    uncommitted: Count = 0
    """Outcomes of deliveries that are durable there and not committed."""
    stands: Stands = Stands()
    """To its group."""
    clock_ahead_ms: Annotated[int, msgspec.Meta(ge=-COUNTED_MAX, le=COUNTED_MAX)] = 0
    """By how much its wall clock was ahead of the meta server's, by the last answer."""
    state: Shown | None = None
    """In which producers should see the group, if this node is its master; None: as before."""
    controls: AppliedControls = AppliedControls()


class GroupMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The start of a node of a group that is registered now, as the others of its group need it."""

    storage_uuid: UUID
    incarnation: Count
    boot_id: UUID
    address: Address
    """host:port for producers, receivers, and the other nodes of its group."""


Members = Annotated[dict[Name, GroupMember], msgspec.Meta(max_length=REPLICAS_MAX)]
"""By node id: the nodes of a group."""


class NodeRegistered(msgspec.Struct, frozen=True, kw_only=True, tag="registered"):
    """The node belongs to its group, in this role."""

    role: NodeRole
    record: GroupRecord
    again_ms: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    """ms after which the node is to say again that it is there."""
    is_retired: bool = False
    """Whether an operator took the group out of service: it accepts no more messages, for good, and
    goes on delivering what it has."""
    is_read_only: bool = False
    """True if an operator lets the group accept no messages for now; it goes on delivering."""
    log_uuid: UUID | None = None
    """Of the group's log: a node without records takes it for its own. None: of an older server."""
    members: Members = {}
    """All nodes of the group, the one that asked among them."""
    now_ms: Annotated[int, msgspec.Meta(ge=0, le=COUNTED_MAX)] | None = None
    """The wall clock of the meta server."""
    clock_fault: Reason = ""
    """Why the wall clock of the node that asked is taken for wrong; empty if it is not."""
    state: Shown | None = None
    """In which producers see the group, if the node that asked is its master."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused", gc=False):
    """The node does not belong here; it must not serve."""

    reason: Reason
    """For people: what is wrong, and what would mend it."""


_REPLY_DECODER: Decoder[NodeRegistered | Refused] = Decoder(NodeRegistered | Refused)

encode_node_register, decode_node_register = codec_of(Decoder(NodeRegister), NODE_BODY_BYTES_MAX)
"""Body of a NODE_REGISTER."""
encode_node_reply, decode_node_reply = codec_of(_REPLY_DECODER, NODE_BODY_BYTES_MAX)
"""Body of an answer to NODE_REGISTER."""
