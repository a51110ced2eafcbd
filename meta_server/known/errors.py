"""What can go wrong in a meta server, and who decides what to do about it.

* MetaServerError
    * RefusedError: a request is refused for what it asks; the reason is for whoever asked.
        * BadValueError: an administrator's value is not allowed; the text says what is.
        * NotNowError: what is asked for may be granted later, without anybody's doing.
        * NotFoundError: what an administrator names is not there.
        * StateError: what is there does not allow it, or has another version than was expected.
    * StoreError
        * StoreUnavailableError: the store cannot be reached or failed. What was being committed may
          or may not be in it: load again before changing anything. Known routes are served on.
        * ConflictError: a row is not what the change expected; nothing of the commit is in the
          store. Load again and decide anew.
        * StoreRefusedError: the store cannot hold what a change says; nothing of the commit is in
          it, and the same again would fail again. A bug of whoever made the row.
        * StoreUnusableError: the store is damaged, or is not the one that was opened. Stop and say
          so.
            * NewerSchemaError: it was written by a newer version. Start that one.
"""

_SHOWN_MAX = 100
"""Characters of a value that a message repeats."""


class MetaServerError(Exception):
    """Anything the meta server raises on purpose."""


class RefusedError(MetaServerError):
    """A request is refused; the text says why, to the one who asked."""


class BadValueError(RefusedError):
    """A value of a request is not allowed."""

    def __init__(self, *, field: str, value: object, allowed: str) -> None:
        shown = f"{value!a}"
        if len(shown) > _SHOWN_MAX:
            shown = shown[:_SHOWN_MAX] + "…"
        super().__init__(f"{field}: {shown} is not allowed: {allowed}")
        self.field = field
        self.value = shown
        self.allowed = allowed


class NotNowError(RefusedError):
    """What is asked for may be granted later; whoever asked is to try again."""


class NotFoundError(RefusedError):
    """There is no such thing."""


class StateError(RefusedError):
    """What is there does not allow it now."""


class StoreError(MetaServerError):
    """Something about the store is wrong."""


class StoreUnavailableError(StoreError):
    """The store failed; whether a commit that was under way is in it is not known."""


class ConflictError(StoreError):
    """A row of the store is not what a change expected; nothing of the commit was kept."""

    def __init__(self, *, what: str, expected: str, found: str) -> None:
        super().__init__(f"{what}: expected {expected}, found {found}")
        self.what = what
        self.expected = expected
        self.found = found


class StoreRefusedError(StoreError):
    """The store cannot hold what a change says; nothing of the commit was kept."""


class StoreUnusableError(StoreError):
    """The store is damaged, or not the one that was opened; nothing in it was changed."""


class NewerSchemaError(StoreUnusableError):
    """The store was written by a newer version; nothing in it was changed."""

    def __init__(self, *, found: int, known: int) -> None:
        super().__init__(
            f"the store has version {found} and this delaywheel knows up to {known}: "
            "run the newer delaywheel that wrote it"
        )
        self.found = found
        self.known = known
