"""Every fault that the broker promises to survive has its tests, and every test that is named is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.broker.fault_cases import CASES, FaultCase

TESTS = Path(__file__).resolve().parents[1]


def functions_of(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_all_33_faults_are_listed_once() -> None:
    assert [case.number for case in CASES] == list(range(1, 34))


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.number))
def test_a_fault_has_a_promise_and_tests_that_exist(case: FaultCase) -> None:
    assert case.fault
    assert case.promise
    assert case.tests
    for name in case.tests:
        file, _, function = name.partition("::")
        assert function in functions_of(TESTS / file), name
