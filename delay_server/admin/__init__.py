"""What operators see and change.

    api          one function for each operation
    dead_view    dead letters as they are shown
    explain      why a message, or those of a subject, were not delivered yet
    http         the HTTP application
    looking      one message by its id, a page and counts of what is pending, a subject
    looks        looks at all messages, one at a time
    metrics      every number that is shown, as Prometheus has it
    parts        what all of these get of a server; none of them knows it
    reasons      the reasons that explain gives
    status       the status document: the numbers of `metrics`, and what is none

Imported by the server, which fills `parts` in, and by the process.
"""
