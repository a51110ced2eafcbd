"""The exchange with sockets.

    blocking   for threads
    client     for asyncio and trio

Imported by services, through `delay_client`.
"""
