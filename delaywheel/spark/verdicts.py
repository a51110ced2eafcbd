"""Commands whose exit codes 0 to 2 are verdicts."""

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

import click

from delaywheel.shared.failures import Failure, failure_of

INSTALL_EXTRA = (
    "install delaywheel with its extra `spark`: in a checkout make install, or pip install "
    "./distributions/client '.[spark]'"
)
ERROR = 3
"""How these commands end when nothing was found out; 1 and 2 say what was."""


class Verdicts(click.Command):
    """A command whose exit codes 0 to 2 are verdicts: whatever goes wrong ends it with 3."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:  # noqa: ANN401 (click's own)
        """Parse the options."""
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            # click declares one code per class of exceptions.
            error.exit_code = ERROR  # type: ignore[misc]
            raise

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 (click's own)
        """Run it."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):
            raise
        except click.ClickException as error:
            error.exit_code = ERROR  # type: ignore[misc]
            raise
        except Exception as error:
            from spark_tools.files.errors import ReconcileError, SparkFailedError

            failure = failure_of(error)
            if isinstance(error, ReconcileError | SparkFailedError | OSError):
                failure = Failure(str(error), ERROR)
            if failure is None:
                traceback.print_exc()
                failure = Failure("a defect of delaywheel: nothing was found out", ERROR)
            raise Failure(failure.message, ERROR) from error


@contextlib.contextmanager
def extra_required() -> Iterator[None]:
    """Say what to install where an import fails; Failure."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Failure(f"{error.name} is missing: {INSTALL_EXTRA}", ERROR) from error
