"""`delaywheel settings`: every setting with its default and what it means, as a TOML file."""

import click


@click.command(short_help="Print all settings as a TOML file.")
def settings() -> None:
    """Print a configuration file that says what every setting means.

    All settings stand in it as comments with their defaults; take away the `#` to change one.

    \b
    Example:
      delaywheel settings > delay-server.toml
    """
    from delay_server.config_reference import reference_toml

    click.echo(reference_toml(), nl=False)
