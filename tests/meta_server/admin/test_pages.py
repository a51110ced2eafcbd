"""Pages of long lists: all of them together are the list, whatever their size."""

import trio
from hypothesis import given
from hypothesis import strategies as st

from meta_server.admin.pages import (
    Turns,
    names_of,
    page_in_order,
    page_of,
    slices_in_order,
    slices_of,
)
from meta_server.known.sorted_table import SortedTable
from tests.delay_server.conftest import run_in_virtual_time


@given(
    names=st.lists(st.text(max_size=4), unique=True, max_size=60),
    limit=st.integers(1, 20),
    unwanted=st.sets(st.text(max_size=4), max_size=5),
)
def test_pages_put_together_are_the_list_in_order(
    names: list[str], limit: int, unwanted: set[str]
) -> None:
    pages: list[list[str]] = []

    async def read() -> None:
        after: str | None = ""
        while after is not None:
            page, after = await page_of(
                names,
                lambda name: (name,),
                after=after,
                limit=limit,
                wanted=lambda name: name not in unwanted,
            )
            pages.append(page)

    run_in_virtual_time(read)
    assert [name for page in pages for name in page] == sorted(set(names) - unwanted)
    assert all(len(page) == limit for page in pages[:-1])
    assert len(pages[-1]) <= limit


async def test_a_page_of_many_is_found_though_all_cannot_be_kept_in_order() -> None:
    names = [f"{number * 7919 % 30_011:05}" for number in range(30_011)]
    page, after = await page_of(names, lambda name: (name,), after="", limit=3)
    assert page == ["00000", "00001", "00002"]
    assert after is not None
    page, _ = await page_of(names, lambda name: (name,), after=after, limit=2)
    assert page == ["00003", "00004"]


async def test_others_get_their_turn_when_time_has_passed() -> None:
    turns = Turns()
    others = 0

    async def other() -> None:
        nonlocal others
        others += 1
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await turns.pause()
        assert others == 0
        for _ in range(2):
            turns._until = trio.current_time()
            await turns.pause()
        assert others == 1


async def test_rows_that_come_meanwhile_do_not_end_a_list() -> None:
    rows = {f"{number:05}": None for number in range(3000)}
    seen: list[str] = []
    async for some in slices_of(rows):
        rows[f"new {len(seen)}"] = None
        seen += some
    assert len(seen) == 3000


@given(
    names=st.lists(st.text("abc", max_size=4), unique=True, max_size=60),
    limit=st.integers(1, 20),
    prefix=st.text("abc", max_size=2),
    unwanted=st.sets(st.text("abc", max_size=4), max_size=5),
)
def test_pages_of_a_sorted_table_put_together_are_the_rows_with_the_prefix_in_order(
    names: list[str], limit: int, prefix: str, unwanted: set[str]
) -> None:
    table = SortedTable({name: name for name in names})
    pages: list[list[str]] = []

    async def read() -> None:
        after: str | None = ""
        while after is not None:
            page, after = await page_in_order(
                table,
                after=after,
                limit=limit,
                prefix=prefix,
                wanted=lambda name: name not in unwanted,
            )
            pages.append(page)

    run_in_virtual_time(read)
    expected = sorted(name for name in set(names) - unwanted if name.startswith(prefix))
    assert [name for page in pages for name in page] == expected
    assert all(len(page) == limit for page in pages[:-1])


async def test_a_list_goes_on_in_order_and_in_slices_whatever_comes_and_goes() -> None:
    table = SortedTable({f"{number:06}": None for number in range(0, 100_000, 2)})
    stays = set(table)
    sizes: list[int] = []
    seen: list[str] = []
    async for some in slices_in_order(table):
        # The rows of a slice are there; meanwhile some behind it go, and others come everywhere.
        assert all(name in table for name in some)
        sizes.append(len(some))
        seen += some
        last = int(some[-1])
        for number in (1, last + 1, last + 999, 99_999):
            table[f"{number:06}"] = None
        table.pop(f"{last + 600:06}", None)
        stays.discard(f"{last + 600:06}")
    assert max(sizes) <= 500
    assert seen == sorted(set(seen))
    assert set(seen) >= stays
    assert await names_of(table) == sorted(table)


async def test_a_page_of_a_large_table_takes_a_look_at_no_more_rows_than_it_has() -> None:
    table = SortedTable({f"{number:06}": number for number in range(50_000)})
    looked_at = 0

    def wanted(_: int) -> bool:
        nonlocal looked_at
        looked_at += 1
        return True

    page, after = await page_in_order(table, after="", limit=100, prefix="04", wanted=wanted)
    assert page == list(range(40_000, 40_100))
    assert after is not None
    page, _ = await page_in_order(table, after=after, limit=100, prefix="04", wanted=wanted)
    assert page == list(range(40_100, 40_200))
    assert looked_at <= 1000
