"""Handles the requests of clients, brokers, delay servers and receivers.

`meta_server/wire/dispatch.py` has the table of refusals.
"""

from delay_protocol.basics.codes import CommandCode
from delay_transport.connections.listener import Dispatch
from meta_server.groups.current_controls import CurrentControls
from meta_server.known.set_back import SetBacks
from meta_server.wire.admission import GroupAdmission
from meta_server.wire.brokers import Brokers, Identities
from meta_server.wire.clients import ClientRoutes, Clients
from meta_server.wire.dispatch import Context, Dispatcher
from meta_server.wire.group_changes import GroupChanges
from meta_server.wire.nodes import Challenges, Nodes
from meta_server.wire.pushes import Pusher
from meta_server.wire.receivers import Receivers
from meta_server.wire.timestamps import Timestamps
from meta_server.wire.votes import Votes, Watches


class Handlers:
    """The families of requests, and the dispatcher that hands them theirs."""

    def __init__(
        self,
        context: Context,
        *,
        timestamps: Timestamps,
        controls: CurrentControls,
        set_backs: SetBacks,
    ) -> None:
        routes, config = ClientRoutes(context, timestamps), context.config
        self.pusher = Pusher(
            sessions=context.sessions,
            answer=routes.answer,
            timestamp=routes.timestamp,
            limits=config.push,
            unsent_bytes_max=config.listener.unsent_bytes_pause,
        )
        self.sessions = context.sessions
        self.held = context.held
        self.dispatcher = Dispatcher(context)
        self.admission = GroupAdmission(context)
        self.receivers = Receivers(context, self.admission)
        self.group_changes = GroupChanges(context, set_backs, controls)
        self.dispatcher.families = {
            CommandCode.CLIENT_REGISTER: Clients(context, routes, self.pusher),
            CommandCode.BROKER_ACQUIRE_META: Identities(context),
            CommandCode.BROKER_REGISTER: Brokers(context, self.admission),
            CommandCode.RECEIVER_REGISTER: self.receivers,
            CommandCode.NODE_REGISTER: Nodes(context, self.admission, self.group_changes),
            CommandCode.NODE_CHALLENGE: Challenges(context),
            CommandCode.NODE_WATCH: Watches(context, self.group_changes),
            CommandCode.GROUP_CHANGE: Votes(context, self.group_changes),
        }

    def dispatch(self) -> Dispatch:
        """Return what a listener hands its frames to."""
        return Dispatch(
            dict.fromkeys(self.dispatcher.families, self.dispatcher.take),
            on_closed=self.dispatcher.closed,
        )
