"""What can go wrong in the sender that it cannot put right itself.

* SenderError
    * SettingError: the settings contradict themselves or each other. Correct them and start again.
    * ItemBytesError: the bytes that were read are not what the index says. A bug of the reader or
      of the index: nothing was sent, the process stops and recovers on restart.

A broker that fails is no error here but an everyday event: see the states in group_status.py.
"""


class SenderError(Exception):
    """Anything the sender raises on purpose."""


class SettingError(SenderError, ValueError):
    """A setting is impossible."""


class ItemBytesError(SenderError):
    """The items that were read do not have the sizes that their entries state."""

    def __init__(self, *, entries: int, items: int, expected_bytes: int, bytes_read: int) -> None:
        super().__init__(
            f"{entries} entries of {expected_bytes} bytes were read as {items} items of "
            f"{bytes_read} bytes"
        )


class GroupRefusedError(SenderError):
    """There is no group of receivers of a name, and none can come into being; the text says why."""
