"""The list of planted faults stays true: each can be planted, and the tests that must notice it exist."""

import ast
from collections import Counter
from functools import cache

from benchmarks.mutants import ROOT, SOURCE, load_mutants


@cache
def functions_of(path: str) -> set[str]:
    return {node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_fault_can_be_planted_and_changes_something() -> None:
    mutants = load_mutants()
    codes = {mutant.name: (SOURCE / "esper" / mutant.file).read_text() for mutant in mutants}
    assert [mutant.name for mutant in mutants if codes[mutant.name].count(mutant.text) != 1] == []
    assert [mutant.name for mutant in mutants if mutant.text == mutant.put] == []
    for mutant in mutants:
        ast.parse(codes[mutant.name].replace(mutant.text, mutant.put))
    assert [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1] == []


def test_every_fault_names_tests_that_exist() -> None:
    for mutant in load_mutants():
        assert mutant.tests, mutant.name
        for test in mutant.tests:
            path, _, name = test.partition("::")
            assert name.partition("[")[0] in functions_of(path), (mutant.name, test)
