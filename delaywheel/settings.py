"""`delaywheel settings`: every setting with its default and what it means."""

import click


@click.command(short_help="Print all settings and what they mean.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["toml", "markdown"]),
    default="toml",
    show_default=True,
    help="toml: a configuration file; markdown: a page, with the client and all commands too.",
)
def settings(form: str) -> None:
    """Print a configuration file that says what every setting means.

    All settings stand in it as comments with their defaults; take away the `#` to change one.

    \b
    Example:
      delaywheel settings > delay-server.toml
    """
    if form == "toml":
        from delay_server.config_reference import reference_toml

        click.echo(reference_toml(), nl=False)
        return
    from delaywheel.settings_page import settings_page

    root = click.get_current_context().find_root().command
    assert isinstance(root, click.Group)
    click.echo(settings_page(root), nl=False)
