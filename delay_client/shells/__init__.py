"""The exchange and the reception with sockets.

    blocking      a client in a thread, for ordinary code
    cancelling    which exceptions end a task
    client        for asyncio and trio
    lines         connections and time on anyio, for any core
    receiver      messages that come, for asyncio and trio

Imported by services, through `delay_client`.
"""
