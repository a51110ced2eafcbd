"""Warns of a listener that others reach and that asks delay servers for no secret."""

import structlog

from meta_server.settings.config import MetaServerConfig

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


def warn_of_exposure(config: MetaServerConfig) -> None:
    """Warn if anybody who reaches the listener could register as any delay server.

    That is no reason to refuse, as it is over HTTP: what QMQ's clients and brokers say on that port
    cannot be authenticated at all, so it needs a network of its own in any case, and there may be
    no delay servers of ours.
    """
    if config.registration.secret_file:
        return
    if address := config.listener.reached_by_others:
        _log.warning(
            "other machines can reach the listener, and delay servers need no secret to register: "
            "anybody there can replace a master",
            address=address,
            remedy="set registration.secret_file here, and meta.secret_file of delay servers",
        )
