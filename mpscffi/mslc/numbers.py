"""Integer constant expressions in attributes."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}


def integer_value(text: str) -> int | None:
    """Return the value of an expression of integer literals; None if it is anything else."""
    plain = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]*\b", lambda match: str(_literal(match.group(1))), text)
    try:
        return _value(ast.parse(plain.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        return None


def _literal(digits: str) -> int:
    is_octal = len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX"
    return int(digits, 8 if is_octal else 0)


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        right = _value(node.right)
        if isinstance(node.op, (ast.LShift, ast.RShift)) and not 0 <= right < 64:
            raise ValueError("shift out of range")
        return _OPERATORS[type(node.op)](_value(node.left), right)
    raise ValueError("not an integer constant")
