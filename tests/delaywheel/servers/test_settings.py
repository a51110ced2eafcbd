"""`delaywheel settings` prints every setting of a server as a configuration file."""

import pytest
from click.testing import CliRunner

from delay_server.settings.config import DelayServerConfig
from delay_server.settings.config_reference import reference_toml
from delay_transport.seams.constants import settings_of
from delay_transport.settings import settings_file
from delay_transport.settings.settings_file import sections
from delaywheel.main import main
from meta_server.settings.config import MetaServerConfig
from meta_server.settings.config_reference import reference_toml as meta_server_toml


@pytest.mark.parametrize(
    ("words", "text"), [([], reference_toml()), (["--of", "meta-server"], meta_server_toml())]
)
def test_the_reference_of_a_server_is_printed_as_it_is(words: list[str], text: str) -> None:
    result = CliRunner().invoke(main, ["settings", *words])
    assert (result.exit_code, result.output) == (0, text)


def test_each_file_has_every_setting_of_its_server() -> None:
    of_meta = settings_file.sections(MetaServerConfig)
    for process, kinds in (("delay-server", sections(DelayServerConfig)), ("meta-server", of_meta)):
        printed = CliRunner().invoke(main, ["settings", "--of", process]).output
        for section, kind in kinds.items():
            part = printed.partition(f"[{section}]")[2].partition("\n[")[0]
            for field in settings_of(kind):
                assert f"#{field.name} = " in part, f"{section}.{field.name}"
