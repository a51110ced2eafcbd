"""`delaywheel settings` prints every setting: files of both servers, and a page of everything."""

from click.testing import CliRunner

from delay_client import ClientConfig, ReceiverConfig, RetryPolicy
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


def test_the_page_has_every_section_the_client_and_every_command() -> None:
    result = CliRunner().invoke(main, ["settings", "--format", "markdown"])
    assert result.exit_code == 0
    headings = [line for line in result.output.splitlines() if line.startswith("#")]
    assert {f"### {name}" for name in sections()} <= set(headings)
    assert {"## The client", "### delaywheel delay-server", "### delaywheel log verify"} <= set(
        headings
    )
    lines = result.output.splitlines()
    assert any(line.startswith("| `load_ahead_ms` | `120000` | Milliseconds ") for line in lines)
    assert any(line.startswith("| `--listen` |") for line in lines)


def test_the_page_has_every_setting_of_the_servers_and_the_client() -> None:
    page = CliRunner().invoke(main, ["settings", "--format", "markdown"]).output
    clients = (ClientConfig, ReceiverConfig, RetryPolicy)
    for kind in (*sections().values(), *meta_server_sections().values(), *clients):
        names = [field.name for field in settings_of(kind)]
        assert [name for name in names if f"| `{name}` |" not in page] == []


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


def test_the_page_has_the_meta_servers_sections_too() -> None:
    page = CliRunner().invoke(main, ["settings", "--format", "markdown"]).output
    for name in meta_server_sections():
        assert f"### meta server: {name}\n" in page
