"""All rows, in memory, and how they change.

    commits        one writer: plan, store, apply
    errors         meta server errors
    model          rows, changes, and what a store is
    registry       rows by key

Imported by every other part.
"""
