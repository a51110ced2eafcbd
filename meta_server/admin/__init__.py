"""Administration: status, metrics, audit and the API.

    admin_types      requests and answers of the API
    administration   plans become commits
    api              one function for each operation
    audit            forgets old audit entries
    http             the HTTP application
    limits           limits that operators set
    metrics          Prometheus metrics
    openapi          the description of the API
    plans            requests to changes
    qmq_management   management calls of QMQ
    status           the status document
    views            rows as they are shown

Imported by the server.
"""
