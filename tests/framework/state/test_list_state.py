"""List state over every installed state backend."""

from __future__ import annotations

import pytest

from keyedstate import types
from keyedstate.errors import InvalidDescriptorError, NullNamespaceError, StateValueError
from keyedstate.state import ListState

RECENT = ListState("recent", types.STRING)
NUMBERS = ListState("numbers", types.INT64)


@pytest.fixture
def numbers(backend):
    backend.set_current_key(1)
    return backend.get_state(NUMBERS)


def lists(backend, state, *keys):
    handle, found = backend.get_state(state), []
    for key in keys:
        backend.set_current_key(key)
        found.append(handle.get())
    return found


def test_two_snapshots_of_a_list_state_restore_what_each_saw(instances):
    """SB-14: content and order."""
    backend = instances.open()
    backend.set_current_key(1)
    recent = backend.get_state(RECENT)
    assert recent.get_internal() is None
    recent.add("1")
    backend.set_current_key(2)
    recent.update(["2"])
    first = instances.snapshot(backend)
    for key, value in ((1, "u1"), (2, "u2"), (3, "u3")):
        backend.set_current_key(key)
        recent.add(value)
    second = instances.snapshot(backend)
    assert lists(backend, RECENT, 1, 2, 3) == [["1", "u1"], ["2", "u2"], ["u3"]]
    assert lists(instances.open([first]), RECENT, 1, 2, 3) == [["1"], ["2"], []]
    assert lists(instances.open([second]), RECENT, 1, 2, 3) == [["1", "u1"], ["2", "u2"], ["u3"]]


@pytest.mark.parametrize("element", [types.INT64, types.nullable(types.INT64)], ids=["plain", "nullable"])
@pytest.mark.parametrize(
    "refused",
    [
        lambda state: state.add(None),
        lambda state: state.add_all(None),
        lambda state: state.add_all([3, None, 5]),
        lambda state: state.update(None),
        lambda state: state.update([3, None, 5]),
        lambda state: state.add_many([1], [None]),
        lambda state: state.update_many([1], [None]),
        lambda state: state.update_many([2, 1], [[1], [None]]),
    ],
    ids=["add", "add_all", "add_all_with", "update", "update_with", "add_many", "update_many", "many_with"],
)
def test_none_is_refused_by_name_and_changes_nothing(backend, element, refused):
    """SB-15 to SB-19."""
    backend.set_current_key(1)
    numbers = backend.get_state(ListState("numbers", element))
    numbers.add(7)
    with pytest.raises(StateValueError, match="'numbers'"):
        refused(numbers)
    assert numbers.get() == [7]
    assert backend.num_entries() == 1


def test_the_error_for_none_names_its_position(numbers):
    with pytest.raises(StateValueError, match=r"None at \[1\] is no element of a list. Leave it out"):
        numbers.add_all([1, None])


def test_elements_are_added_replaced_and_cleared(backend):
    """SB-20."""
    numbers = backend.get_state(NUMBERS)
    backend.set_current_key(5)
    numbers.add(17)
    numbers.add(11)
    assert numbers.get() == [17, 11]
    numbers.update([])
    assert numbers.get() == [] and numbers.get_internal() is None
    numbers.update([10, 16])
    assert numbers.get() == [10, 16]
    backend.set_current_key(2)
    numbers.add_all([])
    assert numbers.get_internal() is None
    numbers.add_all([3, 4])
    numbers.add_all([])
    numbers.add_all([5, 6])
    assert numbers.get() == [3, 4, 5, 6]
    numbers.update([1, 2])
    assert numbers.get() == [1, 2]
    backend.set_current_key(5)
    assert numbers.get() == [10, 16]
    numbers.clear()
    assert numbers.get() == []
    assert backend.num_entries() == 1
    backend.set_current_key(2)
    assert numbers.get() == [1, 2]
    numbers.clear()
    assert backend.num_entries() == 0


def test_an_unset_list_is_empty_also_after_clear(numbers):
    """SB-35."""
    assert numbers.get() == []
    numbers.add(1)
    numbers.clear()
    assert numbers.get() == []


def test_what_get_returns_and_what_was_given_belong_to_the_caller(numbers):
    given = [1]
    numbers.update(given)
    given.append(2)
    numbers.get().append(3)
    more = [4]
    numbers.add_all(more)
    more.append(5)
    assert numbers.get() == [1, 4]


def test_an_element_of_the_wrong_type_is_refused_with_its_place(numbers):
    with pytest.raises(StateValueError, match=r"'numbers' refuses the value: expected INT64 .*got str 'x'"):
        numbers.add("x")
    with pytest.raises(StateValueError, match=r"at \[2\], got bool True"):
        numbers.add_all([1, 2, True])
    with pytest.raises(StateValueError, match="'numbers' refuses the value: a list is needed, got 'xyz'"):
        numbers.add_all("xyz")
    assert numbers.get() == []


def test_any_iterable_of_elements_is_taken(numbers):
    numbers.add_all(number for number in range(3))
    numbers.add_all((3, 4))
    assert numbers.get() == [0, 1, 2, 3, 4]


def test_namespaces_merge_into_the_target_in_their_order(backend):
    """Reference 1.1: all sources are removed and folded into the target; absent ones are fine."""
    backend.set_current_key(1)
    handle = backend.get_state(NUMBERS, "w0", types.STRING)
    for namespace, values in (("w1", [1, 2]), ("w2", [3]), ("target", [9]), ("other", [7])):
        handle.set_namespace(namespace)
        handle.update(values)
    handle.merge_namespaces("target", ["w2", "absent", "w1", "w2", "target"])
    handle.set_namespace("target")
    assert handle.get() == [9, 3, 1, 2]
    assert sorted(backend.get_keys_and_namespaces("numbers")) == [(1, "other"), (1, "target")]
    handle.merge_namespaces("new", ["target", "other"])
    handle.set_namespace("new")
    assert handle.get() == [9, 3, 1, 2, 7]
    handle.merge_namespaces("new", [])
    handle.merge_namespaces("nothing", ["absent"])
    assert list(backend.get_keys_and_namespaces("numbers")) == [(1, "new")]
    with pytest.raises(NullNamespaceError):
        handle.merge_namespaces(None, ["new"])
    with pytest.raises(NullNamespaceError):
        handle.merge_namespaces("new", [None])


def test_merging_leaves_other_keys_alone(backend):
    handle = backend.get_state(NUMBERS, "a", types.STRING)
    for key in (1, 2):
        backend.set_current_key(key)
        handle.add(key)
    handle.merge_namespaces("b", ["a"])
    assert sorted(backend.get_keys_and_namespaces("numbers")) == [(1, "a"), (2, "b")]


def test_the_stored_list_can_be_read_and_overwritten(numbers):
    assert numbers.get_internal() is None
    numbers.update_internal([1, 2])
    assert numbers.get() == numbers.get_internal() == [1, 2]
    with pytest.raises(StateValueError, match="numbers"):
        numbers.update_internal([1, "x"])
    numbers.update_internal(None)
    assert numbers.get_internal() is None


def test_a_list_that_grows_after_a_snapshot_grows_not_in_it(instances):
    """SB-51 for a list that is changed in place."""
    backend = instances.open()
    backend.set_current_key(1)
    numbers = backend.get_state(NUMBERS)
    numbers.update([1])
    task = backend.snapshot(1)
    if task.asynchronous:
        numbers.add(2)
        numbers.add_all([3])
    handle = instances.write(backend, task)
    assert lists(instances.open([handle]), NUMBERS, 1) == [[1]]
    assert numbers.get() == ([1, 2, 3] if task.asynchronous else [1])


def test_elements_may_migrate(instances):
    """MIG-04 in small: a wider element type reads the lists that were written, in order."""
    backend = instances.open()
    backend.set_current_key(1)
    backend.get_state(ListState("numbers", types.INT32)).update([1, 2])
    restored = instances.open([instances.snapshot(backend)])
    restored.set_current_key(1)
    numbers = restored.get_state(NUMBERS)
    numbers.add(2**40)
    assert lists(instances.open([instances.snapshot(restored)]), NUMBERS, 1) == [[1, 2, 2**40]]


def test_a_declaration_without_a_type_is_refused():
    with pytest.raises(InvalidDescriptorError, match=r"its element type is <class 'int'>"):
        ListState("numbers", int)
