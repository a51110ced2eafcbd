"""What ends a run before it has said anything."""


class ReconcileError(Exception):
    """The inputs cannot be reconciled together, or the books do not balance; the text says why."""
