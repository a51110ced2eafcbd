"""The exchange with sockets.

    blocking   for threads
    client     for asyncio and trio
    lines      connections and time on anyio, for any core

Imported by services, through `delay_client`.
"""
