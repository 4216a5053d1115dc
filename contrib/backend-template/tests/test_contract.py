"""The backend against the contract of every backend, and what is its own."""

from collections.abc import Mapping
from typing import ClassVar

from keyedstate.testing import BackendContract


class TestTemplate(BackendContract):
    """As it is configured by default."""

    backend = "template"


class TestSmallVisitorSteps(BackendContract):
    """With its option set."""

    backend = "template"
    options: ClassVar[Mapping[str, object]] = {"template.visitor-step": "2"}

    def test_a_visitor_shows_no_more_than_the_option_says(self, table):
        """Whatever its caller would take."""
        table.put_many([3, 3, 3], ["a", "b", "c"], 1, [[1], [2], [3]])
        visitor = table.visitor(1000)
        assert [len(visitor.next_entries()) for _ in range(3)] == [2, 1, 0]
