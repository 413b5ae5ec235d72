"""Finds what has one value for all threads of a threadgroup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..tokens import IDENTIFIER, OPERATOR
from .code import STEPS, Item, NotSplitError, Stride, Variable
from .statements import Statements

if TYPE_CHECKING:
    from ..kernels import Kernel
    from ..rewrite import Rewriter

# What an expression with one value for all threads may call.
_PURE = {"min", "max", "abs", "clamp", "clz", "ctz", "popcount", "select", "ceil", "floor", "sizeof"} | {
    "as_type",
    "static_cast",
    "is_function_constant_defined",
}
_INTEGERS = {"ushort", "short", "uint", "int", "ulong", "long", "size_t"}
TYPES = {
    base + lanes
    for base in ("bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float", "half", "bfloat")
    for lanes in ("", "2", "3", "4")
} | {"size_t", "ptrdiff_t", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t"}


class SharedValues(Statements):
    """The statements of a kernel, and which of its variables all threads share.

    Parameters
    ----------
    rewriter : Rewriter
    kernel : Kernel
    strides : bool
        Whether threads step through memory side by side, which puts what surrounds such loops into regions of its own.

    Raises
    ------
    NotSplitError
        If control around a barrier may differ between threads.
    """

    def __init__(self, rewriter: Rewriter, kernel: Kernel, *, strides: bool) -> None:
        super().__init__(rewriter, kernel)
        self._strides = strides
        self._templates: set[str] = set()
        if kernel.function.template is not None:
            self._templates = {self._text[index] for index in range(*kernel.function.template)}
        self._find_uniform()

    def _find_uniform(self) -> None:
        """Find the variables that have one value for all threads: all that nothing says otherwise of."""
        while True:
            before = sum(variable.form == "uniform" for variable in self._variables)
            self._demote(self._items)
            for name, variable in self._scope.items():
                if variable.form == "uniform" and self._is_changed(name, self._tail, self._kernel.function.stop - 1):
                    self._to_array(variable)
            if sum(variable.form == "uniform" for variable in self._variables) == before:
                break
        self._check_control(self._items)

    def _to_array(self, variable: Variable) -> None:
        if variable.form != "uniform":
            return
        if not variable.type_text:
            raise NotSplitError(f"parameter '{variable.name}' is changed")
        variable.form = "array"

    def _demote(self, items: list[Item]) -> None:
        for item in items:
            for part in (*([item.first] if item.first else ()), *item.steps):
                self._demote([part])
            if item.kind == "declaration":
                for declarator in item.declarators:
                    if declarator.initializer and not self._is_uniform(*declarator.initializer, item.scope):
                        self._to_array(declarator.variable)
            elif item.kind == "assignment" and item.assigned is not None:
                variable = item.assigned
                name = self._text[item.start] if self._text[item.start] not in STEPS else self._text[item.start + 1]
                start = next((i for i in range(item.start, item.stop) if self._text[i] == name), item.start) + 1
                start += max(self._assignment_at(start), 1)
                if not self._is_uniform(start, item.stop, item.scope):
                    self._to_array(variable)
            if item.kind in ("plain", "collective", "declaration"):
                for name, variable in item.scope.items():
                    if variable.form == "uniform" and self._is_changed(name, item.start, item.stop):
                        self._to_array(variable)
            self._demote(item.body)
            self._demote(item.otherwise or [])

    def _is_uniform(self, start: int, stop: int, scope: dict[str, Variable]) -> bool:
        """Whether an expression surely has one value for all threads, and does nothing else than have it."""
        first = start + 1 if self._text[start] == "=" else start
        if self._changes(first, stop):
            return False
        return all(self._is_uniform_token(index, scope) for index in range(first, stop))

    def _is_uniform_token(self, index: int, scope: dict[str, Variable]) -> bool:
        text, kind = self._text, self._tokens.kind
        word, before, behind = text[index], text[index - 1], text[index + 1]
        if word in ("&", "["):  # an address, or a lambda
            return kind[index - 1] != OPERATOR or before in (")", "]")
        if kind[index] != IDENTIFIER:
            return True
        if before in (".", "->"):
            return behind != "("
        variable = scope.get(word) if before != "::" else None
        if variable is not None:
            return variable.form in ("uniform", "shared")
        if word in self._rewriter.calls.bodies or word in ("this", "new"):
            return False
        if word in self._templates:
            return behind != "(" or text[self._tokens.partner[index + 1] + 1] != "("
        return word in _PURE or word in TYPES or behind not in ("(", "<", "{")

    def _check_control(self, items: list[Item]) -> None:
        for item in items:
            if item.condition is not None and not self._is_uniform(*item.condition, item.scope):
                raise NotSplitError("control around a barrier or SIMD-group function that may differ between threads")
            for part in (*([item.first] if item.first else ()), *item.steps):
                variables = [declarator.variable for declarator in part.declarators]
                if part.assigned is not None:
                    variables.append(part.assigned)
                if any(variable.form != "uniform" for variable in variables):
                    raise NotSplitError("a loop around a barrier that may differ between threads")
            self._check_control(item.body)
            self._check_control(item.otherwise or [])

    def _is_group_level(self, item: Item) -> bool:
        if item.kind == "plain":
            return False
        if item.kind == "declaration":
            return all(declarator.variable.form == "uniform" for declarator in item.declarators)
        if item.kind == "assignment":
            return item.assigned is not None and item.assigned.form == "uniform"
        return True

    def _stride(self, item: Item) -> Stride | None:
        """A loop in which threads step through memory side by side: `for (uint i = thread; i < n; i += threads)`.

        Its rounds can be done by all threads before the next, which makes of a loop whose steps LLVM cannot put into
        one vector a loop over neighbours.
        """
        text, start = self._text, item.start
        if (
            not self._strides
            or item.kind != "plain"
            or text[start] != "for"
            or text[start + 2] not in _INTEGERS
            or text[start + 4] != "="
        ):
            return None
        closing = self._condition_end(start)
        condition = self._statement_end(start + 2)
        step = self._tokens.find(";", condition) + 1
        name = text[start + 3]
        stop = closing - 1
        if not (condition < step < stop) or text[step] != name or text[step + 1] != "+=" or name in item.scope:
            return None
        first, body = (start + 5, condition - 1), (closing, item.stop)
        stride = Stride(text[start + 2], name, first, (condition, step - 1), (step + 2, stop), body)
        words = set(text[closing : item.stop])
        if words & {"for", "while", "do", "switch", "break", "continue", "return", "static"}:
            return None
        if self._is_changed(name, *stride.body) or not self._is_uniform(*stride.step, item.scope):
            return None
        is_simple = self._is_made_of_inputs(stride.first, item.scope)
        scope = {**item.scope, name: Variable(name, "input")}
        return stride if is_simple and self._is_made_of_inputs(stride.condition, scope) else None

    def _is_made_of_inputs(self, tokens: tuple[int, int], scope: dict[str, Variable]) -> bool:
        """Whether an expression is made of numbers, of what a thread is told of itself, and of what all share."""
        text, kind = self._text, self._tokens.kind
        if self._changes(*tokens) or {"[", "*=", "->", "{"} & set(text[tokens[0] : tokens[1]]):
            return False
        for index in range(*tokens):
            if kind[index] == IDENTIFIER and text[index] not in TYPES and text[index - 1] != ".":
                variable = scope.get(text[index])
                if variable is None or variable.form not in ("input", "uniform") or text[index + 1] == "(":
                    return False
        return True
