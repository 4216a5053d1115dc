"""What the tables of every backend must do."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import pytest

from keyedstate import types
from keyedstate.backend import AnyStateTable, Capability
from keyedstate.testing.contract.base import KEY_GROUPS, META, Address, ContractBase, content, fill, requires
from keyedstate.testing.instances import Instance


class TableContract(ContractBase):
    """Tests of `StateTable` and its visitor."""

    # -- one entry --------------------------------------------------------------------------------------

    def test_an_absent_entry_reads_as_none_and_can_be_removed(self, table: AnyStateTable) -> None:
        """COW-01, COW-03."""
        assert table.get(3, "a", 1) is None
        assert not table.contains(3, "a", 1)
        assert table.remove_and_get_old(3, "a", 1) is None
        table.remove(3, "a", 1)
        assert len(table) == 0
        assert content(table) == {}

    def test_what_was_put_is_read_under_its_whole_address_only(self, table: AnyStateTable) -> None:
        """COW-01."""
        assert table.put_and_get_old(3, "a", 1, [41]) is None
        assert table.put_and_get_old(4, "b", 1, [42]) is None
        assert table.put_and_get_old(3, "a", 2, [43]) is None
        assert len(table) == 3
        assert table.get(3, "a", 1) == [41]
        assert table.get(4, "b", 1) == [42]
        assert table.get(3, "a", 2) == [43]
        assert table.contains(3, "a", 2)
        assert not table.contains(3, "c", 1)
        assert not table.contains(4, "b", 3)

    def test_a_put_replaces_and_returns_the_old_value(self, table: AnyStateTable) -> None:
        table.put(3, "a", 1, [1])
        table.put(3, "a", 1, [2])
        assert table.put_and_get_old(3, "a", 1, [3]) == [2]
        assert table.get(3, "a", 1) == [3]
        assert len(table) == 1

    def test_none_is_a_value(self, table: AnyStateTable) -> None:
        """COW-02."""
        table.put(3, "a", 1, None)
        assert len(table) == 1
        assert table.contains(3, "a", 1)
        assert table.get(3, "a", 1) is None
        assert content(table) == {(3, "a", 1): None}
        table.put(3, "a", 1, [7])
        assert (len(table), table.get(3, "a", 1)) == (1, [7])

    def test_a_null_key_is_a_key_and_a_void_namespace_a_namespace(self, instance: Instance) -> None:
        """Spark's ``GROUP BY`` has a group for null; most states have the void namespace only."""
        table = instance.table(replace(META, name="void", namespace_serializer=types.VOID))
        table.put(3, None, types.VOID_NAMESPACE, [1])
        table.put(3, "", types.VOID_NAMESPACE, [2])
        assert table.get(3, None, types.VOID_NAMESPACE) == [1]
        assert len(table) == 2
        assert set(table.keys(types.VOID_NAMESPACE)) == {None, ""}
        table.remove(3, None, types.VOID_NAMESPACE)
        assert set(table.keys(types.VOID_NAMESPACE)) == {""}

    def test_a_removed_entry_is_gone_and_its_value_returned(self, table: AnyStateTable) -> None:
        """COW-03."""
        table.put(3, "a", 1, [1])
        table.put(3, "a", 2, [2])
        assert table.remove_and_get_old(3, "a", 1) == [1]
        assert not table.contains(3, "a", 1)
        table.remove(3, "a", 2)
        assert len(table) == 0
        table.put(3, "a", 1, [3])
        assert content(table) == {(3, "a", 1): [3]}

    def test_transform_puts_what_the_function_makes_of_the_old_value(self, table: AnyStateTable) -> None:
        """COW-04."""
        table.put(3, "a", 1, [41])
        table.transform(3, "a", 1, 4711, lambda old, value: [*(old or []), value])
        assert table.get(3, "a", 1) == [41, 4711]
        table.transform(3, "b", 1, 1, lambda old, value: [value] if old is None else [])
        assert table.get(3, "b", 1) == [1]

    def test_a_transform_that_raises_changes_nothing(self, table: AnyStateTable) -> None:
        def refuse(old: Any, value: Any) -> Any:
            raise ZeroDivisionError

        table.put(3, "a", 1, [1])
        for key in ("a", "b"):
            with pytest.raises(ZeroDivisionError):
                table.transform(3, key, 1, 0, refuse)
        assert content(table) == {(3, "a", 1): [1]}

    @requires(Capability.OBJECTS_BY_REFERENCE)
    def test_the_very_object_comes_back_where_that_is_claimed(self, table: AnyStateTable) -> None:
        """COW-07."""
        value = [1]
        table.put(3, "a", 1, value)
        assert table.get(3, "a", 1) is value

    # -- all entries --------------------------------------------------------------------------------------

    def test_keys_are_listed_by_namespace_over_all_key_groups(self, table: AnyStateTable) -> None:
        model = fill(table, 60)
        for namespace in range(3):
            keys = list(table.keys(namespace))
            assert len(keys) == 20
            assert set(keys) == {key for _, key, other in model if other == namespace}
        assert list(table.keys(99)) == []

    def test_every_address_is_listed_once(self, table: AnyStateTable) -> None:
        model = fill(table, 60)
        addresses = list(table.keys_and_namespaces())
        assert len(addresses) == len(model)
        assert set(addresses) == {(key, namespace) for _, key, namespace in model}

    def test_a_namespace_whose_entries_are_all_removed_leaves_no_trace(self, table: AnyStateTable) -> None:
        model = fill(table, 60)
        for address in model:
            if address[2] == 1:
                table.remove(*address)
        assert list(table.keys(1)) == []
        assert {namespace for _, namespace in table.keys_and_namespaces()} == {0, 2}
        assert content(table) == {address: value for address, value in model.items() if address[2] != 1}

    def test_many_random_changes_leave_what_a_dict_would_hold(self, table: AnyStateTable) -> None:
        """COW-06, in small."""
        generator, model = random.Random(42), dict[Address, Any]()
        for number in range(5_000):
            address = (
                3 + generator.randrange(len(KEY_GROUPS)),
                f"key-{generator.randrange(20)}",
                generator.randrange(4),
            )
            match generator.randrange(6):
                case 0 | 1:
                    table.put(*address, [number])
                    model[address] = [number]
                case 2:
                    assert table.put_and_get_old(*address, [number]) == model.get(address)
                    model[address] = [number]
                case 3:
                    assert table.remove_and_get_old(*address) == model.pop(address, None)
                case 4:
                    assert table.get(*address) == model.get(address)
                    assert table.contains(*address) == (address in model)
                case _:
                    table.transform(*address, number, lambda old, value: [value, len(old or ())])
                    model[address] = [number, len(model.get(address) or ())]
            # A table of bytes may have to count.
            if number % 25 == 0:
                assert len(table) == len(model)
        assert content(table) == model

    # -- bulk ---------------------------------------------------------------------------------------------

    def test_bulk_calls_do_what_single_calls_do(self, table: AnyStateTable) -> None:
        groups, keys = [3, 9, 4, 3], ["a", "b", "c", "a"]
        table.put_many(iter(groups), iter(keys), 1, iter([[1], [2], None, [4]]))
        assert content(table) == {(3, "a", 1): [4], (9, "b", 1): [2], (4, "c", 1): None}
        assert table.get_many(iter(groups), iter(keys), 1) == [[4], [2], None, [4]]
        assert table.get_many([5, 3], ["x", "a"], 2) == [None, None]
        assert table.get_many_for_update(iter(groups), iter(keys), 1) == [[4], [2], None, [4]]
        table.remove_many(iter([3, 4, 5]), iter(["a", "c", "x"]), 1)
        assert content(table) == {(9, "b", 1): [2]}

    def test_bulk_calls_take_nothing(self, table: AnyStateTable) -> None:
        assert table.get_many([], [], 1) == table.get_many_for_update([], [], 1) == []
        table.put_many([], [], 1, [])
        table.remove_many([], [], 1)
        assert len(table) == 0

    def test_bulk_columns_of_unequal_length_are_refused(self, table: AnyStateTable) -> None:
        with pytest.raises(ValueError):
            table.get_many([3, 4], ["a"], 1)
        with pytest.raises(ValueError):
            table.get_many_for_update([3], ["a", "b"], 1)
        with pytest.raises(ValueError):
            table.put_many([3], ["a"], 1, [])
        with pytest.raises(ValueError):
            table.remove_many([], ["a"], 1)

    def test_a_table_that_is_trimmed_shows_the_same(self, table: AnyStateTable) -> None:
        """The framework asks it of tables that are not used for a while, again and again."""
        model = fill(table, 60)
        table.trim(0.0)
        assert content(table) == model
        table.put(3, "trimmed", 1, [-1])
        for address in list(model)[::2]:
            table.remove(*address)
            del model[address]
        table.trim(time.monotonic())
        table.trim(0.0)
        assert content(table) == {**model, (3, "trimmed", 1): [-1]}
        assert table.get_many([3, 3], ["trimmed", "none"], 1) == [[-1], None]

    # -- the visitor --------------------------------------------------------------------------------------

    @pytest.mark.parametrize("batch_size", [1, 5, 1000])
    def test_a_visitor_shows_every_entry_once(self, table: AnyStateTable, batch_size: int) -> None:
        model = fill(table, 60)
        visitor, shown = table.visitor(batch_size), list[Any]()
        while step := visitor.next_entries():
            shown += step
        assert not visitor.next_entries()
        assert {(entry.key_group, entry.key, entry.namespace): entry.value for entry in shown} == model
        assert len(shown) == len(model)

    def test_a_visitor_updates_and_removes(self, table: AnyStateTable) -> None:
        model = fill(table, 60)
        visitor = table.visitor(7)
        while step := visitor.next_entries():
            for entry in step:
                if entry.value[0] % 2:
                    visitor.remove(entry)
                else:
                    visitor.update(entry, [-entry.value[0]])
        assert content(table) == {
            address: [-value[0]] for address, value in model.items() if not value[0] % 2
        }

    def test_a_visitor_shows_untouched_entries_once_while_others_change(self, table: AnyStateTable) -> None:
        """COW-06."""
        generator, model = random.Random(42), fill(table, 200)
        untouched = {address: value for address, value in model.items() if value[0] % 4 == 0}
        touched = [address for address in model if address not in untouched]
        visitor, shown = table.visitor(5), list[Any]()
        number = 0
        while step := visitor.next_entries():
            shown += step
            for _ in range(10):
                number += 1
                address = generator.choice(touched)
                if generator.random() < 0.5:
                    table.remove(*address)
                else:
                    table.put(*address, [-1])
                table.put(generator.choice(list(KEY_GROUPS)), f"new-{number % 50}", number % 3, [-2])
        seen = [(entry.key_group, entry.key, entry.namespace) for entry in shown]
        assert [seen.count(address) for address in untouched] == [1] * len(untouched)
