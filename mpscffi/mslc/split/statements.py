"""Reads a kernel: its parameters, and the statements that threads come to together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..calls import COLLECTIVE_TYPE
from ..kernels import ADDRESS_SPACES, declared_name, split_list
from ..tokens import IDENTIFIER
from .code import STEPS, Code, Declarator, Item, NotSplitError, Variable

if TYPE_CHECKING:
    from ..kernels import Kernel
    from ..rewrite import Rewriter

_BARRIERS = {"threadgroup_barrier", "simdgroup_barrier"}
_OPERATIONS = re.compile(
    r"(?:simd|quad)_(?:sum|product|min|max|and|or|xor|prefix_(?:in|ex)clusive_(?:sum|product)"
    r"|shuffle|broadcast|shuffle_xor|shuffle_(?:rotate_)?(?:up|down))"
)
_PER_THREAD_INPUTS = {
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "thread_index_in_quadgroup",
    "quadgroup_index_in_threadgroup",
}
# Statements that begin with one of these are neither declarations nor expressions.
_JUMPS = {"return", "break", "continue", "goto"}
_KEYWORDS = {"case", "default", "delete", "throw", "if", "else", "for", "while", "do", "switch", "operator"} | _JUMPS
_REFUSED = {"goto", "asm", "__asm__", "decltype", "__typeof__", "#", "_Pragma", "volatile", "const_cast"}
_DECLARE_TYPES = {"struct", "class", "union", "enum", "using", "typedef", "static_assert"}
_SPECIFIERS = {"const", "constexpr", "static", "unsigned", "signed", "thread", "device", "threadgroup", "constant"}


class Statements(Code):
    """The statements of a kernel.

    Parameters
    ----------
    rewriter : Rewriter
    kernel : Kernel

    Raises
    ------
    NotSplitError
    """

    def __init__(self, rewriter: Rewriter, kernel: Kernel) -> None:
        super().__init__(rewriter, kernel)
        self._refuse()
        function = kernel.function
        self._parameters = self._read_parameters()
        scope = {variable.name: variable for variable in self._parameters}
        body, stop = function.body + 1, function.stop - 1
        self._tail = self._find_tail(body, stop)
        self._items = self._block(body, self._tail, scope)
        self._scope = self._last_scope

    def _refuse(self) -> None:
        calls, kernel = self._rewriter.calls, self._kernel.function
        if calls.meets_out_of_sight(kernel):
            raise NotSplitError("threads may meet elsewhere than at the kernel's own calls")
        for function in calls.reachable(kernel):
            if any(function.body < opening < function.stop for opening in calls.spins):
                raise NotSplitError("a loop that waits for another thread")
            if function is not kernel and any(self._meets(index) for index in range(function.opening, function.stop)):
                raise NotSplitError(f"threads meet in '{function.name}', which the kernel may call")
        if kernel.name in calls.mentions(kernel.name):
            raise NotSplitError("the kernel mentions itself")
        for index in range(kernel.body, kernel.stop):
            word = self._text[index]
            if word in _REFUSED or "mslc" in word or self._inside[index]:
                raise NotSplitError(f"'{word}'")
            if _OPERATIONS.fullmatch(word) and word in calls.bodies:
                raise NotSplitError(f"'{word}' is the source's own function")
            if COLLECTIVE_TYPE.fullmatch(word):
                raise NotSplitError("a matrix of a SIMD-group")

    def _read_parameters(self) -> list[Variable]:
        function = self._kernel.function
        parts = split_list(self._tokens, function.opening + 1, function.closing)
        parts = [[index for index in part if not self._inside[index]] for part in parts]
        parts = [part for part in parts if part and [self._text[index] for index in part] != ["void"]]
        self._parameter_tokens: list[int] = []
        variables: list[Variable] = []
        for part, parameter in zip(parts, self._kernel.parameters, strict=True):
            token = declared_name(self._tokens, part)
            words = [self._text[index] for index in part]
            if token is None or "[" in words or "(" in words:
                raise NotSplitError(f"parameter '{parameter.name}' is no plain name")
            role = parameter.role.removeprefix("mslc::").partition(",")[0]
            variable = Variable(parameter.name, "uniform", f"{parameter.name}_mslc")
            if role in _PER_THREAD_INPUTS:
                variable.form, variable.input = "input", role
            elif "&" in words:
                is_constant = role == "constant_reference"
                variable.form, variable.is_reference = "uniform" if is_constant else "shared", True
            elif "*" not in words:
                variable.is_const = True
            else:
                variable.type_text = f"__remove_cv(decltype({variable.place}))"
            variables.append(variable)
            self._parameter_tokens.append(token)
        if len({variable.name for variable in variables}) != len(variables):
            raise NotSplitError("two parameters of one name")
        self._variables += variables
        return variables

    def _find_tail(self, start: int, stop: int) -> int:
        """Where the statements begin at which no threads meet any more."""
        tail = index = start
        while index < stop:
            following = self._statement_end(index)
            if self._has_meeting(index, following):
                tail = following
            index = following
        return tail

    def _block(self, start: int, stop: int, outer: dict[str, Variable]) -> list[Item]:
        """Read the statements [start, stop), whose `Item`s see what is declared before them."""
        items: list[Item] = []
        scope = dict(outer)
        index = start
        while index < stop:
            if self._text[index] == ";":
                index += 1
                continue
            end = self._statement_end(index)
            item = self._statement(index, end, scope)
            items.append(item)
            if item.kind in ("declaration", "collective", "group"):
                new = [declarator.variable for declarator in item.declarators]
                for variable in new:
                    if variable.name in scope:
                        raise NotSplitError(f"'{variable.name}' hides another variable")
                scope = {**scope, **{variable.name: variable for variable in new}}
            index = end
        self._last_scope = scope
        return items

    def _statement(self, start: int, stop: int, scope: dict[str, Variable]) -> Item:
        word = self._text[start]
        meets = self._has_meeting(start, stop)
        jumps = self._jumps(start, stop)
        item = Item("plain", start, stop, scope)
        if word == "threadgroup" and "struct mslc_threadgroup_" in self._output[start]:
            return self._threadgroup(item)
        if word in ("static", "const", "constexpr", "alignas") and "struct mslc_threadgroup_" in self._output[start]:
            return self._threadgroup(item)
        if word in _DECLARE_TYPES and not meets:
            self._refuse_variables(item)
            item.kind = "group"
            return item
        if not meets and not jumps:
            return self._plain(item)
        if word == "{":
            item.kind, item.body = "block", self._block(start + 1, stop - 1, scope)
        elif word == "if":
            self._if(item)
        elif word == "for":
            self._for(item)
        elif word == "while":
            closing = self._condition_end(start)
            item.kind, item.condition = "while", (start + 2, closing - 1)
            item.body = self._block(closing, stop, scope)
        elif word == "do":
            end = self._statement_end(start + 1)
            item.kind, item.condition = "do", (end + 2, self._tokens.partner[end + 1])
            item.body = self._block(start + 1, end, scope)
        elif word in ("return", "break", "continue"):
            if self._text[start + 1] != ";":
                raise NotSplitError("a value is returned")
            item.kind = "jump"
        elif self._is_barrier(start, stop):
            item.kind = "barrier"
        elif meets and word not in _KEYWORDS:
            self._collective(item)
        else:
            raise NotSplitError(f"threads meet, or leave, in a '{word}'")
        return item

    def _refuse_variables(self, item: Item) -> None:
        """Refuse a definition of a type that also declares variables, or names its type with `struct`."""
        text = self._text
        if text[item.start] in ("using", "typedef", "static_assert"):
            return
        opening = next((index for index in range(item.start, item.stop) if text[index] in ("{", "=", "(")), item.start)
        if text[opening] != "{" or self._tokens.partner[opening] + 2 != item.stop:
            raise NotSplitError(f"a variable of a type that is told by '{text[item.start]}'")

    def _is_barrier(self, start: int, stop: int) -> bool:
        index = start + 2 if self._text[start : start + 2] == ["metal", "::"] else start
        if self._text[index] not in _BARRIERS or self._text[index + 1] != "(":
            return False
        closing = self._tokens.partner[index + 1]
        words = self._text[index + 2 : closing]
        return self._text[closing + 1] == ";" and closing + 2 == stop and "(" not in words

    def _threadgroup(self, item: Item) -> Item:
        """Variables in threadgroup memory: references that all regions see."""
        item.kind = "group"
        names = re.findall(r"auto &(\w+) = mslc_threadgroup_\w+\.\w+;", self._output[item.stop - 1])
        item.declarators = [Declarator(Variable(name, "shared", name), (0, 0), None) for name in names]
        return item

    def _if(self, item: Item) -> None:
        closing = self._condition_end(item.start)
        opening = self._tokens.partner[closing - 1]
        item.kind, item.condition = "if", (opening + 1, closing - 1)
        end = self._statement_end(closing)
        item.body = self._block(closing, end, item.scope)
        if end < item.stop:
            item.otherwise = self._block(end + 1, item.stop, item.scope)

    def _for(self, item: Item) -> None:
        closing = self._condition_end(item.start)
        first = item.start + 2
        condition = self._statement_end(first)
        steps = self._tokens.find(";", condition) + 1
        if steps > closing - 1:
            raise NotSplitError("a loop over a range")
        item.kind, item.condition = "for", (condition, steps - 1)
        scope = item.scope
        if condition > first + 1:
            item.first = self._plain(Item("plain", first, condition, scope))
            if item.first.kind not in ("declaration", "assignment"):
                raise NotSplitError("a loop that begins with neither a declaration nor an assignment")
            new = {declarator.variable.name: declarator.variable for declarator in item.first.declarators}
            if not scope.keys().isdisjoint(new):
                raise NotSplitError("a loop's variable hides another")
            scope = {**scope, **new}
        for part in split_list(self._tokens, steps, closing - 1):
            step = Item("plain", part[0], part[-1] + 1, scope)
            self._find_assigned(step)
            if step.assigned is None:
                raise NotSplitError("a loop that goes on by more than assignments")
            step.kind = "assignment"
            item.steps.append(step)
        item.scope = scope
        item.body = self._block(closing, item.stop, scope)

    def _plain(self, item: Item) -> Item:
        """A statement at which no threads meet."""
        if self._text[item.start] not in _KEYWORDS | {"{"}:
            self._find_declaration(item)
            if not item.declarators:
                self._refuse_declaration(item)
                self._find_assigned(item)
                if item.assigned is not None:
                    item.kind = "assignment"
        return item

    def _refuse_declaration(self, item: Item) -> None:
        """Refuse a declaration that was not understood: what it declares would be taken for a constant."""
        text, kind = self._text, self._tokens.kind
        index = item.start
        if text[index] in _SPECIFIERS | {"auto", "typename"}:
            raise NotSplitError("a declaration that is not understood")
        if kind[index] != IDENTIFIER or text[index] in item.scope:
            return
        index += 1
        while text[index] == "::" and kind[index + 1] == IDENTIFIER:
            index += 2
        if text[index] == "<" and (closing := self._tokens.try_close_angle(index)) is not None:
            index = closing + 1
        if kind[index] == IDENTIFIER or text[index] in ("*", "&", "&&", "::"):
            raise NotSplitError("a declaration that is not understood")

    def _find_assigned(self, item: Item) -> None:
        """`v = e`, `v += e`, `v++`, `++v`, alone in the statement."""
        text = self._text
        start, stop = item.start, item.stop - (text[item.stop - 1] == ";")
        if text[start] in STEPS and stop == start + 2:
            item.assigned = item.scope.get(text[start + 1])
            return
        is_step = text[start + 1] in STEPS and stop == start + 2
        if is_step or ((width := self._assignment_at(start + 1)) and not self._changes(start + 1 + width, stop)):
            item.assigned = item.scope.get(text[start])

    def _find_declaration(self, item: Item) -> None:
        """Read `T a = e, b[n];` into the item's declarators; none if the statement is something else."""
        text, kind = self._text, self._tokens.kind
        index = item.start
        words: list[int] = []
        while text[index] in _SPECIFIERS:
            words.append(index)
            index += 1
        specifiers = {text[place] for place in words}
        if kind[index] == IDENTIFIER and not (specifiers & {"unsigned", "signed"} and text[index + 1] in ("=", ";")):
            if text[index] in item.scope:
                return
            words.append(index)
            index += 1
            while text[index] == "::" and kind[index + 1] == IDENTIFIER:
                words += [index, index + 1]
                index += 2
            if text[index] == "<":
                closing = self._tokens.try_close_angle(index)
                if closing is None:
                    return
                words += range(index, closing + 1)
                index = closing + 1
                while text[index] == "::" and kind[index + 1] == IDENTIFIER:
                    words += [index, index + 1]
                    index += 2
            while text[index] in _SPECIFIERS:
                words.append(index)
                index += 1
        while text[index] in ("*", "const", "restrict") or text[index] in ADDRESS_SPACES:
            words.append(index)
            index += 1
        is_reference = text[index] in ("&", "&&")
        if is_reference:
            index += 1
        if kind[index] != IDENTIFIER or text[index + 1] not in ("=", ";", ",", "[", "(", "{") or not words:
            return
        stars = [place for place in words if text[place] == "*"]
        is_const = bool({"const", "constexpr"} & {text[place] for place in words if not stars or place > stars[-1]})
        kept = [
            place
            for place in words
            if text[place] not in ("constexpr", "static", "thread")
            and not (text[place] == "const" and (not stars or place > stars[-1]))
        ]
        if any(text[place] in item.scope for place in words):
            raise NotSplitError("a type that is made of a variable")
        type_text = self._render(kept)
        is_constexpr = "constexpr" in {text[place] for place in words}
        self._find_declarators(item, index, type_text, is_const, is_constexpr, is_reference)
        if len(item.declarators) > 1 and stars:
            raise NotSplitError("several pointers in one declaration")
        spaces = {"device", "constant", "threadgroup"} & {text[place] for place in words}
        is_own = any(text[place] in self._rewriter.calls.bodies for place in words)
        for declarator in item.declarators:
            declarator.variable.is_private_pointer = bool(stars) and not spaces
            if declarator.variable.is_private_pointer or is_own:
                declarator.variable.form = "array"  # it may point to what one thread has, or do more than to begin

    def _find_declarators(
        self, item: Item, index: int, type_text: str, is_const: bool, is_constexpr: bool, is_reference: bool
    ) -> None:
        for part in split_list(self._tokens, index, item.stop - 1):
            name, stop = part[0], part[-1] + 1
            if self._tokens.kind[name] != IDENTIFIER:
                raise NotSplitError("a declarator that is no plain name")
            behind = name + 1
            while behind < stop and self._text[behind] == "[":
                behind = self._tokens.partner[behind] + 1
            if behind < stop and self._text[behind] not in ("=", "(", "{"):
                raise NotSplitError("a declarator that is no plain name")
            variable = Variable(self._text[name], "uniform", "", type_text, is_const, is_constexpr, is_reference)
            initializer = (behind, stop) if behind < stop else None
            if behind > name + 1 or initializer is None or is_reference:
                variable.form = "array"
            item.declarators.append(Declarator(variable, (name + 1, behind), initializer))
            self._variables.append(variable)
        item.kind = "declaration"

    def _collective(self, item: Item) -> None:
        """An expression, or a declaration of one variable, with SIMD-group functions that are surely called."""
        text, partner = self._text, self._tokens.partner
        self._find_declaration(item)
        if len(item.declarators) > 1 or any(part.suffix[0] < part.suffix[1] for part in item.declarators):
            raise NotSplitError("a SIMD-group function in a declaration of several variables")
        for declarator in item.declarators:
            declarator.variable.form = "array"
        item.kind = "collective"
        index = item.start
        while index < item.stop:
            if self._meets(index):
                if not _OPERATIONS.fullmatch(text[index]) or text[index + 1] != "(":
                    raise NotSplitError(f"'{text[index]}'")
                item.collectives.append(index)
                if not self._has_meeting(index + 1, partner[index + 1]):
                    index = partner[index + 1]
            elif text[index] in ("?", "&&", "||", "{"):
                raise NotSplitError("a SIMD-group function that may not be called")
            elif text[index] in self._rewriter.calls.bodies or text[index].startswith("atomic_"):
                raise NotSplitError("a function is called beside a SIMD-group function")
            index += 1
        top = item.declarators[0].initializer if item.declarators else None
        operator = top[0] + 1 if top else self._first_assignment(item)
        if self._changes(operator, item.stop):
            raise NotSplitError("an assignment in an expression with a SIMD-group function")
        if operator and self._has_meeting(item.start, operator):
            raise NotSplitError("a SIMD-group function on the left")

    def _first_assignment(self, item: Item) -> int:
        for index in range(item.start, item.stop):
            if width := self._assignment_at(index):
                return index + width
        return item.start
