"""A reader sees a file whole, in whatever steps it asks, and gets past what cannot be read."""

from hypothesis import given
from hypothesis import strategies as st

from storage.disk.read_ahead import ReadAhead
from tests.seeds import examples
from tests.simulation.faults import Action, Trap
from tests.storage.small_logs import disk_of

DATA = bytes(range(256)) * 64


@given(st.lists(st.tuples(st.integers(0, 17_000), st.integers(0, 9_000)), max_size=20))
@examples(60)
def test_any_view_is_the_bytes_of_the_file(asked: list[tuple[int, int]]) -> None:
    file = disk_of({"log": DATA}).open_read("log")
    window = ReadAhead(file, end=16_000, unreadable=[], piece=1000)
    views = [(position, size, window.view(position, size)) for position, size in asked]
    for position, size, view in views:
        assert view == DATA[:16_000][position : position + size]


def test_blocks_that_cannot_be_read_are_zeros_and_are_reported() -> None:
    disk = disk_of({"log": DATA})
    unreadable: list[tuple[str, int]] = []
    window = ReadAhead(disk.open_read("log"), end=len(DATA), unreadable=unreadable)
    # The whole piece first, then the second block of it.
    disk.arm(
        Trap(action=Action.EIO, kinds={"read"}), Trap(action=Action.EIO, kinds={"read"}, skip=1)
    )
    assert window.view(0, len(DATA)) == DATA[:4096] + bytes(4096) + DATA[8192:]
    assert unreadable == [("log", 4096)]


def test_a_file_is_read_in_large_pieces() -> None:
    disk = disk_of({"log": DATA})
    window = ReadAhead(disk.open_read("log"), end=len(DATA), unreadable=[])
    before = disk.counts.get("read", 0)
    for position in range(0, len(DATA), 80):
        window.view(position, 80)
    assert disk.counts["read"] == before + 1
