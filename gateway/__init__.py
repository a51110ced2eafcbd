"""HTTP in front of a cluster: services without Python send messages by POST, and are posted them.

    times      delays and moments as text
    incoming   messages from requests
    meant      messages that a request names, or a filter
    cluster    the HTTP of meta servers and delay servers
    sending    messages to the cluster
    looking    what waits, and what became of a message
    changing   cancel and move
    overview   a cluster at a glance, and what is due when
    operating  what operators look at and change
    page       the files of the page, in ui/
    app        the routes
    document   the OpenAPI document
    server     the routes on uvicorn, within limits
    webhooks   messages that are due go out by POST

A gateway keeps nothing: it is a client of the cluster as any other, and there may be many.
Imports delay_client; nothing imports it but the command.
"""
