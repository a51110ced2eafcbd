"""Endings of a command: well, or with a code and a sentence."""

from click.testing import Result


def done(result: Result) -> Result:
    """Return the result of a command that has to end well."""
    assert result.exit_code == 0, result.output
    return result


def refused(result: Result, code: int, said: str) -> Result:
    """Return the result of a command that has to end with a code and an error that says `said`."""
    assert result.exit_code == code, result.output
    assert said in result.stderr
    return result
