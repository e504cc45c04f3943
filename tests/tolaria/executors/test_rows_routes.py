"""Routes of rows through stacked hosts."""

import doctest

from esper.tolaria.executors import rows


def test_the_worked_example_is_what_the_code_does() -> None:
    result = doctest.testmod(rows)
    assert result.attempted >= 12
    assert result.failed == 0
