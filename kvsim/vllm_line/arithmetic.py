"""What stands in ``$((...))``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def _value(node: ast.expr, value: Callable[[str], int]) -> int:
    """An arithmetic expression of bash: whole numbers, names and + - * / %."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return value(node.id)
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, value), _value(node.right, value))
    raise ValueError


def computed(text: str, value: Callable[[str], int]) -> int:
    """The value of an arithmetic expression of bash.

    Args:
        text: whole numbers, names, brackets and + - * / %.
        value: of a name.

    Raises:
        ValueError: it is none of these.
    """
    try:
        return _value(ast.parse(text, mode="eval").body, value)
    except (SyntaxError, KeyError, ZeroDivisionError):
        raise ValueError(text) from None
