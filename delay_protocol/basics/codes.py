"""The numbers of QMQ's protocol: what is asked, what is answered, and what became of one item.

Three tables that must not be mixed up: a `CommandCode` names a request, a `ResponseCode` answers a
whole frame, an `ItemCode` answers one message item inside a frame that was answered with SUCCESS.
"""

from enum import IntEnum


class CommandCode(IntEnum):
    """What a request asks for. QMQ's own codes are below 1000, ours from 1000 up."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    ACK_REQUEST = 12
    SYNC_LOG_REQUEST = 20
    SYNC_CHECKPOINT_REQUEST = 21
    CONSUME_MANAGE = 25
    BROKER_REGISTER = 30
    CLIENT_REGISTER = 35
    BROKER_ACQUIRE_META = 40
    HEARTBEAT = 100
    HELLO = 1001
    """Who is sending, and of which epoch: the first request on a delivery connection."""
    NODE_REGISTER = 1010
    """A delay server tells a meta server which node and which data it is, and asks for its role in
    its group; repeated, it renews the node's lease."""
    NODE_CHALLENGE = 1011
    """A delay server that has a secret asks for what proves, on this connection, that a meta server
    has it too: the first request on a connection that registers."""
    NODE_WATCH = 1013
    """A delay server that has registered on this connection asks for news of its group and for
    controls: answered when there are some, or after a while."""
    GROUP_CHANGE = 1014
    """A delay server votes, proposes an in-sync set, or hands its group over."""
    FOLLOW = 1020
    """A slave asks its master, at the port of producers, whether their logs are the same."""
    BATCHES = 1021
    """One-way, to a slave that follows: batches of the message_log."""
    ACK = 1022
    """One-way, from a slave: how far its log is durable."""
    LEAVE = 1023
    """One-way, from a slave: it stops, or cannot append."""
    SNAPSHOT = 1024
    """A slave whose log ends before its master's begins asks for a checkpoint to copy."""
    SNAPSHOT_READ = 1025
    """A slave asks for bytes of the checkpoint that it copies, or of a file that is named there."""
    ATTACH = 1040
    """A receiver asks a delay server for messages, under the name of its group."""
    DELIVER = 1041
    """One-way, to a receiver: messages that are due."""
    SETTLE = 1042
    """A receiver says what became of messages; answered once that is durable."""
    FLOW = 1043
    """One-way, from a receiver: how much may be unsettled at a time."""
    RECEIVER_REGISTER = 1044
    """A receiver asks a meta server where to attach: answered when there is something new, or after
    a while."""
    CHANGE = 1050
    """A client takes messages back, or has them at another time."""


class ResponseCode(IntEnum):
    """The answer to a whole frame."""

    SUCCESS = 0
    UNKNOWN_CODE = 3
    """The receiver has no handler for the request's code."""
    NO_MESSAGE = 4
    BROKER_ERROR = 51
    """The handler failed or could not read the body: a producer sends all items again, at once."""
    BROKER_REJECT = 52
    """The receiver's role or epoch forbids it. A Java producer then avoids the whole broker group
    until its route changes, so this is never the answer to a passing state."""
    PARAM_ERROR = 53
    UNAUTHENTICATED = 1001
    """Ours: the request does not prove that whoever asks has the secret. It says nothing of what
    was asked for."""


class ItemCode(IntEnum):
    """The answer to one item of a SEND_MESSAGE whose frame was answered with SUCCESS."""

    SUCCESS = 0
    """Never on the wire: an item that is not listed succeeded."""
    BROKER_BUSY = 1
    """Never sent by us: a Java producer fails the message at once, without a retry."""
    MESSAGE_DUPLICATE = 2
    """The receiver has the message already; a sender counts it as delivered."""
    SUBJECT_NOT_ASSIGNED = 3
    """The subject is illegal or not served here."""
    BROKER_READ_ONLY = 4
    """Lasting refusal; like BROKER_REJECT it sticks in Java producers until a route change."""
    BLOCK = 5
    """Permanent refusal: the producer does not try again."""
    STORE_ERROR = 6
    """The item could not be kept as it arrived: the producer sends it again."""
