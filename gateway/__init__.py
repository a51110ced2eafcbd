"""HTTP in front of a cluster: services without Python send messages by POST, and are posted them.

    times      delays and moments as text
    incoming   messages from requests
    meant      messages that a request names, or a filter
    refusals   errors of the cluster as problem details
    cluster    the HTTP of meta servers and delay servers
    overview   a cluster at a glance, once for all who watch
    api        what all operations share: each is declared beside its function
    sending    operations: messages to the cluster
    looking    operations: what waits, and what became of a message
    changing   operations: cancel and move
    timeline   operations: what is due when
    operating  operations: the overview, dead letters, pauses
    page       the files of the page, in ui/
    app        the API, the page, health and metrics as one application
    server     the application on uvicorn, within limits
    webhooks   messages that are due go out by POST

A gateway keeps nothing: it is a client of the cluster as any other, and there may be many.
Imports delay_client; nothing imports it but the command.
"""
