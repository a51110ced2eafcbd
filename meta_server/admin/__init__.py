"""Administration: status, metrics, audit and the API.

    admin_types      requests and answers of the API
    administration   plans become commits
    api              one function for each operation
    entrance         who is let in, and how many at a time
    http             the HTTP application
    metrics          every number that is shown, as Prometheus has it
    openapi          the description of the API
    pages            pages of long lists
    parts            what admin gets of a server; it knows no more of one
    plans            requests to changes
    status           the status document
    views            rows as they are shown

No file imports one above it:

    http
    openapi
    api
    views
    status
    metrics
    parts
    administration   entrance
    pages   plans
    admin_types

Imported by the server and the process.
"""
