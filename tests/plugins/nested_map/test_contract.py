"""nested-map against the contract of every backend, and what is its own."""

from __future__ import annotations

import gc
import weakref

import pytest

from keyedstate.backend import Capability, EntryBatch, Level
from keyedstate.testing import BackendContract


class TestNestedMap(BackendContract):
    backend = "nested-map"

    def test_it_pauses_for_its_snapshots_and_says_so(self, instance):
        assert instance.backend.description.level(Capability.ASYNC_SNAPSHOT) is Level.NEVER

    @pytest.mark.parametrize("change", ["put", "remove"])
    def test_iterating_fails_fast_when_the_table_changes(self, table, change):
        table.put_many([3, 3, 3], ["a", "b", "c"], 1, [[1], [2], [3]])
        for iterate in (lambda: table.keys(1), table.keys_and_namespaces):
            iterator = iterate()
            next(iterator)
            table.put(3, "new", 1, [4]) if change == "put" else table.remove(3, "c", 1)
            with pytest.raises(RuntimeError, match="changed size during iteration"):
                list(iterator)
            table.put(3, "c", 1, [3])
            table.remove(3, "new", 1)

    def test_a_visitor_of_no_entries_a_step_is_refused(self, table):
        with pytest.raises(ValueError, match="steps of 0 entries"):
            table.visitor(0)

    def test_a_visitor_shows_values_as_they_are_when_it_reaches_them(self, table):
        table.put_many([3, 9], ["a", "b"], 1, [[1], [2]])
        visitor = table.visitor(1)
        (first,) = visitor.next_entries()
        table.put(9, "b", 1, [22])
        (second,) = visitor.next_entries()
        assert (first.value, second.value) == ([1], [22])

    @pytest.mark.parametrize("remove", ["remove", "remove_and_get_old", "remove_many"])
    def test_a_namespace_goes_with_its_last_entry(self, table, remove):
        """Windows are namespaces: closed ones must not pile up."""

        class Window:
            pass

        window = Window()
        alive = weakref.ref(window)
        table.put(3, "a", window, [1])
        if remove == "remove_many":
            table.remove_many([3], ["a"], window)
        else:
            getattr(table, remove)(3, "a", window)
        del window
        gc.collect()
        assert alive() is None

    def test_restored_columns_of_unequal_length_are_refused(self, table):
        with pytest.raises(ValueError):
            table.restore_entries(3, EntryBatch([1], ["a", "b"], [[1]]))
