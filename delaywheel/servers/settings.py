"""`delaywheel settings`: every setting with its default and what it means."""

import click


@click.command(short_help="Print all settings and what they mean.")
@click.option(
    "--of",
    "process",
    type=click.Choice(["delay-server", "meta-server"]),
    default="delay-server",
    show_default=True,
    help="Whose configuration file.",
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
