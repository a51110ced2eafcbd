"""`delaywheel settings` prints the file that config_reference writes."""

from click.testing import CliRunner

from delay_server.config_reference import reference_toml
from delaywheel.main import main


def test_the_reference_is_printed_as_it_is() -> None:
    result = CliRunner().invoke(main, ["settings"])
    assert result.exit_code == 0
    assert result.output == reference_toml()
