"""The group knows its commands, and each explains itself with an example."""

import re

import click
import pytest
from click.testing import CliRunner

from delaywheel.main import main
from delaywheel.shared.failures import ExitCode
from tests.delaywheel.endings import done


def leaves(group: click.Group, *path: str) -> list[tuple[str, ...]]:
    found = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found += leaves(command, *path, name)
        else:
            found.append((*path, name))
    return found


EDITABLE = (
    *("broker", "broker-group", "group-rule", "receiver", "route", "subject", "subject-rule"),
    "webhook",
)
ADMIN = {
    "get": ("audit", "cluster", "delay-group", "delay-node", *EDITABLE),
    "remove": ("delay-node", *EDITABLE),
    "set": EDITABLE,
    "token": ("add", "list", "receiver", "remove"),
}
"""What `delaywheel admin` does with which kind."""
ACTIONS = (
    *(
        "approve",
        "disable",
        "elect",
        "extend",
        "give-up",
        "handover",
        "min-isr",
        "read-only",
        "recover",
    ),
    *("restore", "retire"),
)


def test_the_commands_are_those_of_the_readme() -> None:
    assert sorted(leaves(main)) == sorted(
        [
            ("admin", "export"),
            ("admin", "import"),
            *(("admin", verb, kind) for verb, kinds in ADMIN.items() for kind in kinds),
            *(("admin", action) for action in ACTIONS),
            ("broker",),
            ("cancel",),
            ("controls",),
            *(("dead", verb) for verb in ("drop", "list", "requeue", "show")),
            ("delay-server",),
            ("dev",),
            ("drain",),
            ("count",),
            ("explain",),
            ("gateway",),
            ("find",),
            ("list",),
            ("limit",),
            ("log", "dump"),
            ("log", "manifest"),
            ("log", "salvage"),
            ("log", "verify"),
            ("meta-server",),
            ("receiver", "remove"),
            ("move",),
            ("receiver", "show"),
            ("pause",),
            ("resume",),
            ("send",),
            ("settings",),
            *(("spark", job) for job in ("hours", "page", "reconcile", "repair")),
            ("status",),
            ("topology",),
            ("weight",),
        ]
    )


@pytest.mark.parametrize("command", leaves(main), ids=" ".join)
def test_every_command_explains_itself_with_an_example(command: tuple[str, ...]) -> None:
    result = done(CliRunner().invoke(main, [*command, "--help"]))
    assert "Example" in result.output
    assert f"delaywheel {' '.join(command)}" in result.output


def test_the_exit_codes_can_be_looked_up() -> None:
    told = CliRunner().invoke(main, ["-h"]).output.partition("Exit codes: ")[2]
    codes = [int(code) for code in re.findall(r"(?:^|, )\s*(\d) ", told.partition(".")[0])]
    assert codes == [0, 1, *ExitCode]


def test_the_first_command_is_the_one_to_begin_with() -> None:
    commands = CliRunner().invoke(main, []).output.partition("Commands:\n")[2]
    assert commands.split()[0] == "dev"


def test_an_unknown_command_is_refused() -> None:
    assert CliRunner().invoke(main, ["wheel"]).exit_code == 2
