"""`delaywheel settings` prints every setting of a server as a configuration file."""

from click.testing import CliRunner

from delay_server.settings.config import sections
from delay_server.settings.config_reference import reference_toml
from delay_transport.seams.constants import settings_of
from delaywheel.main import main
from meta_server.settings.config import sections as meta_server_sections
from meta_server.settings.config_reference import reference_toml as meta_server_toml


def test_the_reference_is_printed_as_it_is() -> None:
    result = CliRunner().invoke(main, ["settings"])
    assert result.exit_code == 0
    assert result.output == reference_toml()


def test_each_file_has_every_setting_of_its_server() -> None:
    for process, kinds in (("delay-server", sections()), ("meta-server", meta_server_sections())):
        printed = CliRunner().invoke(main, ["settings", "--of", process]).output
        for section, kind in kinds.items():
            part = printed.partition(f"[{section}]")[2].partition("\n[")[0]
            for field in settings_of(kind):
                assert f"#{field.name} = " in part, f"{section}.{field.name}"


def test_the_file_of_a_meta_server_is_printed_on_demand() -> None:
    result = CliRunner().invoke(main, ["settings", "--of", "meta-server"])
    assert result.exit_code == 0
    assert result.output == meta_server_toml()
