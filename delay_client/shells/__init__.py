"""The exchange with sockets.

    blocking   for threads
    client     for asyncio and trio
    lines      connections on anyio

Imported by services, through `delay_client`.
"""
