"""Pages of long lists: all of them together are the list, whatever their size."""

import trio
from hypothesis import given
from hypothesis import strategies as st

from delay_transport.http.pages import PageQuery, Turns, page_of, slices_of
from tests.kit.virtual_time import run_in_virtual_time


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
            page = await page_of(
                names,
                lambda name: (name,),
                PageQuery(after=after, limit=limit),
                show=str,
                wanted=lambda name: name not in unwanted,
            )
            pages.append(page.items)
            after = page.next

    run_in_virtual_time(read)
    assert [name for page in pages for name in page] == sorted(set(names) - unwanted)
    assert all(len(page) == limit for page in pages[:-1])
    assert len(pages[-1]) <= limit


async def test_a_page_of_many_is_found_though_all_cannot_be_kept_in_order() -> None:
    names = [f"{number * 7919 % 30_011:05}" for number in range(30_011)]
    page = await page_of(names, lambda name: (name,), PageQuery(limit=3), show=str)
    assert page.items == ["00000", "00001", "00002"]
    assert page.next is not None
    query = PageQuery(after=page.next, limit=2)
    page = await page_of(names, lambda name: (name,), query, show=str)
    assert page.items == ["00003", "00004"]


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
