"""What operators see and change.

    access       who may call which endpoint
    admin_http   pauses, limits, planned stop
    dead_http    dead letters
    explain      why a message was not delivered yet
    http         the HTTP application
    metrics      Prometheus metrics, made of `numbers`
    numbers      every number that is shown: one row for each
    parts        what all of these get of a server; none of them knows it
    reasons      the reasons that explain gives
    status       the status document, made of `numbers` and what is no number

Imported by the server, which fills `parts` in, and by the process.
"""
