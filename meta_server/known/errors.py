"""Errors of a meta server, and who handles them.

* MetaServerError
    * RefusedError: a request is refused; the reason is for the caller.
        * BadValueError: an administrator's value is not allowed; the text says which are.
        * NotNowError: a temporary refusal; the same request may succeed later.
        * NotFoundError: a named row does not exist.
        * StateError: the row's state does not allow it, or the row has another version.
    * StoreError
        * StoreUnavailableError: the store cannot be reached or failed. The commit may or may not be
          in it: load again before any change. Known routes are still served.
        * ConflictError: a row is not as the change expected; nothing of the commit is in the store.
          Load again and plan again.
        * StoreRefusedError: the store cannot hold a value; nothing of the commit is in it, and a
          retry would fail again. A bug in the code that made the row.
        * StoreUnusableError: the store is damaged, or is not the one that was opened. Report it and
          stop.
            * OtherSchemaError: it was written by another version. Start that one.
"""

from delay_transport.http import problems


class MetaServerError(Exception):
    """Anything the meta server raises on purpose."""


class RefusedError(MetaServerError):
    """A request is refused; the text tells the caller why."""


class BadValueError(problems.BadValueError, RefusedError):
    """A value of a request is not allowed."""


class NotNowError(RefusedError):
    """A temporary refusal: the caller is to try again."""


class NotFoundError(RefusedError):
    """There is no such thing."""


class StateError(RefusedError):
    """The present state does not allow it."""


class StoreError(MetaServerError):
    """Something about the store is wrong."""


class StoreUnavailableError(StoreError):
    """The store failed; whether a commit that was under way is in it is not known."""


class ConflictError(StoreError):
    """A row of the store is not what a change expected; nothing of the commit was kept."""


class StoreRefusedError(StoreError):
    """The store cannot hold what a change says; nothing of the commit was kept."""


class StoreUnusableError(StoreError):
    """The store is damaged, or not the one that was opened; nothing in it was changed."""


class OtherSchemaError(StoreUnusableError):
    """The store was written by another version; nothing in it was changed."""

    def __init__(self, *, found: int, known: int) -> None:
        super().__init__(
            f"the store has version {found} and this delaywheel knows version {known} alone: "
            "run the delaywheel that wrote it, or begin with a new store"
        )
