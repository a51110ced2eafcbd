"""`delaywheel settings`: every setting with its default and what it means."""

import click

from delaywheel.shared.options import option


@click.command(short_help="Print all settings and what they mean.")
@option(
    "--of",
    "Whose configuration file.",
    to="process",
    type=click.Choice(["delay-server", "meta-server"]),
    default="delay-server",
)
def settings(process: str) -> None:
    """Print a configuration file that explains every setting.

    All settings are comments with their defaults; remove the `#` to change one.

    \b
    Examples:
      delaywheel settings > delay-server.toml
      delaywheel settings --of meta-server > meta-server.toml
    """
    if process == "meta-server":
        from meta_server.settings.config_reference import reference_toml
    else:
        from delay_server.settings.config_reference import reference_toml
    click.echo(reference_toml(), nl=False)
