"""A receiver attaches with what is left out as usual, and no text has its token."""

import pytest

from delay_protocol.basics.errors import LocalProtocolError
from delay_protocol.receivers import attaching
from tests.delay_protocol.nodes.bodies import ATTACH, BODIES, FLOW, said


def test_what_is_left_out_is_as_usual() -> None:
    body = said(ATTACH, patterns=..., weight=..., unsettled_tries=..., token=...)
    assert attaching.decode_attach(body) == attaching.Attach(name="r", instance=ATTACH.instance)
    assert attaching.decode_attach_reply(
        said(BODIES["not attached"].example, is_final=...)
    ) == attaching.AttachRefused(reason="no")
    assert attaching.decode_flow(said(FLOW, bytes=..., reason=..., later_key=1)) == attaching.Flow(
        items=1000, bytes=attaching.CREDIT_BYTES_MAX
    )


def test_no_text_has_the_token() -> None:
    attach = attaching.Attach(name="r", instance=bytes(16), weight=0, token="a-token")  # noqa: S106 (none)
    assert repr(attach) == "<Attach of 'r'>"
    with pytest.raises(LocalProtocolError, match="Attach is not encodable: Expected") as found:
        attaching.encode_attach(attach)
    assert "a-token" not in str(found.value)
