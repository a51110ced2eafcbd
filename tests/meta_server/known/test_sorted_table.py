"""A sorted table is a dict whose names can be told in order, whatever came and went."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from meta_server.known import sorted_table
from meta_server.known.sorted_table import SortedTable
from tests.seeds import examples

names = st.text("ab\0\uffff", max_size=5)


class TableMachine(RuleBasedStateMachine):
    """A table of small blocks beside a plain dict."""

    @initialize(rows=st.dictionaries(names, st.integers(), max_size=80))
    def make(self, rows: dict[str, int]) -> None:
        self.rows = dict(rows)
        self.table = SortedTable(rows)

    @rule(name=names, row=st.integers())
    def put(self, name: str, row: int) -> None:
        self.rows[name] = row
        self.table[name] = row

    @rule(name=names)
    def take(self, name: str) -> None:
        assert self.table.pop(name, None) == self.rows.pop(name, None)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if self.rows:
            name = data.draw(st.sampled_from(sorted(self.rows)))
            del self.rows[name], self.table[name]
        else:
            with pytest.raises(KeyError):
                del self.table["a"]

    @rule(name=names, count=st.integers(1, 30), behind=st.booleans())
    def tell(self, name: str, count: int, behind: bool) -> None:
        expected = [one for one in sorted(self.rows) if one > name or (one == name and not behind)]
        assert self.table.names_from(name, count, behind=behind) == expected[:count]

    @invariant()
    def is_a_dict_in_order(self) -> None:
        assert self.table == self.rows
        assert self.table.names_from("", len(self.rows) + 1, behind=False) == sorted(self.rows)
        assert all(self.table._blocks)
        assert [block[0] for block in self.table._blocks] == self.table._lowest


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_table, "_BLOCK", 4)
        patch.setattr(sorted_table, "_SAMPLES", 2)
        yield


TestTable = TableMachine.TestCase
TestTable.settings = examples(150)


@given(st.integers(0, 2**32))
@examples(20)
def test_a_table_that_is_made_of_many_rows_has_blocks_of_about_one_size(seed: int) -> None:
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_table, "_BLOCK", 100)
        patch.setattr(sorted_table, "_SAMPLES", 8)
        # Names that begin alike, as those of one application do, and some that are anything.
        rows = {
            f"app.{chance.randrange(3)}.{chance.randrange(10**6)}"
            if chance.random() < 0.8
            else str(chance.random()): None
            for _ in range(5000)
        }
        table = SortedTable(rows)
        assert table.names_from("", 10_000, behind=False) == sorted(rows)
        assert max(map(len, table._blocks)) < 1000


def test_a_table_is_taken_apart_row_by_row() -> None:
    table = SortedTable({str(number): number for number in range(100)})
    assert sum(table.popitem()[1] for _ in range(100)) == 4950
    assert sum(map(len, table._blocks)) == 0
    with pytest.raises(KeyError):
        table.popitem()
