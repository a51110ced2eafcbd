"""A client keeps its name when its process starts again."""

import re
import subprocess
import sys

from delay_client.messages.identity import client_id


def test_the_name_has_the_form_of_qmq_and_stays_the_same() -> None:
    assert re.fullmatch(r"[^@]+@@[0-9a-f]{32}", client_id())
    program = "from delay_client.messages.identity import client_id; print(client_id())"
    names = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(names) == 1
