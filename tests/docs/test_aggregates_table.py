"""The reference pages list the aggregates that the code declares."""

import re

import pytest
from docs.aggregates_table import API, PAGE, api_page, page, table

from statebed.aggregates import functions
from statebed.aggregates.declaration import Function, declared_functions

RUN = "run: python tests/docs/aggregates_table.py"


def test_the_table_of_aggregates_is_what_the_code_declares() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), RUN
    assert re.findall(r"^\| `(\w+)\(", table(), re.MULTILINE) == functions.__all__


def test_the_page_of_the_api_names_every_aggregate() -> None:
    assert API.read_text(encoding="utf-8") == api_page(), RUN


@pytest.mark.parametrize("function", declared_functions(), ids=lambda function: function.name)
def test_every_declared_function_is_public_under_its_name(function: Function) -> None:
    assert callable(getattr(functions, function.name))
    assert function.name in functions.__all__
    assert not set(function.other_names) & set(functions.__all__)
