"""Puts the packages of the tree into the wheel of the client, where that is no editable one."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGES = ("delay_client", "delay_protocol")


class PackagesOfTheTree(BuildHookInterface[Any]):
    """Names the folders of the tree that a wheel has; an editable install reads them in place."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the packages to a standard wheel."""
        if version == "standard":
            build_data["force_include"] |= {f"../../{name}": name for name in _PACKAGES}
