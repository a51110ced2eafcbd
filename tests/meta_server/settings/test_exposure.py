"""Who is warned that others may register delay servers."""

import pytest
from structlog.testing import capture_logs

from meta_server.settings.config import ListenerConfig, RegistrationConfig
from meta_server.settings.exposure import warn_of_exposure
from tests.meta_server.meta_rig import make_config


@pytest.mark.parametrize(
    ("listener", "secret", "warnings"),
    [
        (ListenerConfig(), "", 0),
        (ListenerConfig(address="0.0.0.0:20880"), "", 1),
        (ListenerConfig(advertised="meta.example:20880"), "", 1),
        (ListenerConfig(address="10.0.0.1:20880"), "secret", 0),
    ],
)
def test_a_listener_that_others_reach_without_a_secret_is_warned_of(
    listener: ListenerConfig, secret: str, warnings: int
) -> None:
    registration = RegistrationConfig(secret_file=secret)
    with capture_logs() as logs:
        warn_of_exposure(make_config(listener=listener, registration=registration))
    assert [line["log_level"] for line in logs] == ["warning"] * warnings
    assert all("registration.secret_file" in line["remedy"] for line in logs)
