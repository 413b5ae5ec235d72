"""The stub of the compiled binding says what the binding has."""

from __future__ import annotations

import ast

from stub import STUB, stub


def test_the_stub_is_up_to_date() -> None:
    # Compared as syntax, since the formatter has been over the file.
    written, expected = (ast.dump(ast.parse(text)) for text in (STUB.read_text(encoding="utf-8"), stub()))
    assert written == expected, "write it anew: python tests/stub.py && ruff format mpscffi/_shim.pyi"
