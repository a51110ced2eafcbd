"""Errors that end a run before it has a result.

ReconcileError                the inputs or the books are to blame
OptionError                   what was asked for is
DamagedInputError             what is read is not whole, and nobody said that this is all right
OutputError                   a result cannot be written down
RemoteError                   a store elsewhere cannot be asked for what is in it
"""


class ReconcileError(Exception):
    """The inputs cannot be reconciled together, or the books do not balance; the text says why."""


class OptionError(ValueError):
    """An option of the data source is wrong; the text says which, and what there is."""


class DamagedInputError(Exception):
    """A file is missing or damaged; the text says which, and what to do."""


class RemoteError(ReconcileError):
    """An object store cannot be reached, or refuses access; the text says what to do."""


class OutputError(ReconcileError):
    """A result cannot be written down; the text names the file, and says why."""


class SparkFailedError(Exception):
    """Spark cannot be started, or could not do its work; the text says why."""
