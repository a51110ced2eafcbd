"""Version 4: what operators have paused, limited and weighted is kept, for each cluster."""

from typing import Final

STATEMENTS: Final = (
    """
    CREATE TABLE controls (
        id {row_number},
        cluster TEXT NOT NULL,
        document_json TEXT NOT NULL,
        version {number} NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX controls_key ON controls (cluster)",
)
