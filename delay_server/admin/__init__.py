"""What operators see and change.

    access       who may call which endpoint
    admin_http   pauses, limits, planned stop
    dead_http    dead letters
    explain      why a message was not delivered yet
    http         the HTTP application
    metrics      Prometheus metrics
    reasons      the reasons that explain gives
    status       the status document

Imported by the server.
"""
