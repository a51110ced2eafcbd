"""The HTTP port of a server, and its API.

    application       health, status and metrics around an API
    openapi           the document of an API
    api               routes and answers of operations
    convert           checked structs from requests
    pages             pages of long lists
    operations        what an operation is
    problems          refusals of requests
    metric_families   Prometheus families from counters

    server            an ASGI application on Hypercorn, within limits
    capped_listener   connections up to a cap
    access            tokens, or being on this machine; how many requests at a time
    addresses         loopback, hosts and browsers
    tokens            the file of bearer tokens
    server_tokens     the file of tokens that a caller shows to servers
    credentials       proofs that a node has the secret
    shared_secret     the file of the cluster's secret

Imported by delay_server and meta_server.
"""
