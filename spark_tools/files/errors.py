"""What ends a run before it has said anything.

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
    """What should be read is not there, or damaged; the text says where and what to do."""


class RemoteError(ReconcileError):
    """A store elsewhere cannot be reached, or does not let us in; the text says what to do."""


class OutputError(ReconcileError):
    """A result cannot be written down; the text names the file, and says why."""


class SparkFailedError(Exception):
    """Spark cannot be started, or could not do its work; the text says why."""
