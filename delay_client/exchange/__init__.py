"""Messages on their way, without I/O.

    answers      what an answer means for each message
    asking       what a cancel or a move asks of whom
    balancing    which server gets a batch
    batches      items of one request
    changing     cancels and moves on their way
    circuits     servers that failed
    discovery    finding the meta server
    exchange     the state machine of all of it
    links        connections, without their sockets
    meta_link    the connection to the meta server
    pending      messages that are on no connection
    reasons      why messages are not accepted
    routing      servers of a subject
    talks        what is asked of a meta server
    trouble      when it is told that none is accepted

Imported by receiving and shells.
"""
