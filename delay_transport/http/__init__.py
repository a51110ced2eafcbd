"""The HTTP port of a server.

    capped_listener   connections up to a cap
    access            tokens, or being on this machine
    addresses         loopback, hosts and browsers
    metric_families   Prometheus families from counters
    server            an ASGI application on Hypercorn, within limits
    shared_secret     the file of the cluster's secret
    tokens            the file of bearer tokens

Imported by delay_server and meta_server.
"""
