"""Settings that no operator may choose: bounds that a test reaches."""

from delay_server.settings.config import StorageConfig


class SmallStorage(StorageConfig):
    """Settings of storage with any values at all."""

    def __post_init__(self) -> None:
        """Take what a node would refuse."""
