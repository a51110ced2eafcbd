"""Administration: status, metrics, audit and the API.

    admin_types      structs of the API's requests and answers
    administration   plans become commits
    api              the operations: three verbs and the actions of each kind
    approval         the rule of what waits for an operator
    context          what rules read and return
    http             the HTTP application
    kinds            the kinds of rows, each declared once
    metrics          every number that is shown, as Prometheus has it
    next_steps       what an operator does next for each group
    node_rules       rules of delay groups and their nodes
    parts            what admin gets of a server; it knows no more of one
    rules            rules of all other kinds: requests to changes
    status           the status document
    verbs            lists and shows rows of any kind, and changes them
    views            rows as they are shown

No file imports one above it:

    http
    api
    verbs   status
    kinds   metrics
    views   approval
    parts
    administration
    rules   node_rules
    context   next_steps
    admin_types

Imported by the server and the process.
"""
