"""Kernels with barriers, without fibers: loops over the threads of a threadgroup between one barrier and the next.

The statements of a kernel's outermost block, and of the loops and branches that hold a barrier or SIMD-group function,
are run once for the threadgroup; what stands between two of them is a region, which is run for each thread in turn. A
variable is a scalar of the threadgroup if it provably has one value for all threads, a local variable of its region if
nothing behind the region mentions it, and an array over the threads else.

Two things make that right. Control around barriers is uniform: made of values that all threads share. And clang is the
judge of what tokens cannot tell: inside regions, scalars of the threadgroup are const, so that a region which changes
one, by whatever way, does not compile. Whatever is not understood here, or not compiled by clang, runs as fibers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .calls import COLLECTIVE_CALL, COLLECTIVE_TYPE
from .kernels import ADDRESS_SPACES, declared_name, split_list
from .tokens import IDENTIFIER, OPERATOR

if TYPE_CHECKING:
    from .kernels import Kernel
    from .rewrite import Rewriter

_BARRIERS = {"threadgroup_barrier", "simdgroup_barrier"}
_OPERATIONS = re.compile(
    r"(?:simd|quad)_(?:sum|product|min|max|and|or|xor|prefix_(?:in|ex)clusive_(?:sum|product)"
    r"|shuffle|broadcast|shuffle_xor|shuffle_(?:rotate_)?(?:up|down))"
)
_WITH_DELTA = re.compile(r".*(?:shuffle|broadcast).*")
_PER_THREAD_INPUTS = {
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "thread_index_in_quadgroup",
    "quadgroup_index_in_threadgroup",
}
_ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<="}
_STEPS = {"++", "--"}
# Statements that begin with one of these are neither declarations nor expressions.
_JUMPS = {"return", "break", "continue", "goto"}
_KEYWORDS = {"case", "default", "delete", "throw", "if", "else", "for", "while", "do", "switch", "operator"} | _JUMPS
_REFUSED = {"goto", "asm", "__asm__", "decltype", "__typeof__", "#", "_Pragma", "volatile"}
_DECLARE_TYPES = {"struct", "class", "union", "enum", "using", "typedef", "static_assert"}
_SPECIFIERS = {"const", "constexpr", "static", "unsigned", "signed", "thread", "device", "threadgroup", "constant"}
# What an expression with one value for all threads may call.
_PURE = {"min", "max", "abs", "clamp", "clz", "ctz", "popcount", "select", "ceil", "floor", "sizeof"} | {
    "as_type",
    "static_cast",
    "is_function_constant_defined",
}
_INTEGERS = {"ushort", "short", "uint", "int", "ulong", "long", "size_t"}
_TYPES = {
    base + lanes
    for base in ("bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "float", "half", "bfloat")
    for lanes in ("", "2", "3", "4")
} | {"size_t", "ptrdiff_t", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t"}


class NotSplitError(Exception):
    """A kernel that this module does not understand: why."""


@dataclass(eq=False, slots=True)
class _Variable:
    """A variable of the kernel that code of the threadgroup's level can see.

    `form` is "uniform", "array", "local" (to one region), "input" (one value for each thread, not stored) or "shared"
    (a name that regions see as it is). `place` is its name on the threadgroup's level; `input` the role of an input.
    """

    name: str
    form: str
    place: str = ""
    type_text: str = ""
    is_const: bool = False
    is_constexpr: bool = False
    is_reference: bool = False
    is_private_pointer: bool = False
    input: str = ""


@dataclass(eq=False, slots=True)
class _Declarator:
    variable: _Variable
    suffix: tuple[int, int]
    initializer: tuple[int, int] | None  # tokens behind the name: with `=`, in parentheses or in braces


@dataclass(eq=False, slots=True)
class _Stride:
    """A loop `for (type name = first; condition; name += step) body` of one thread, as ranges of tokens."""

    type: str
    name: str
    first: tuple[int, int]
    condition: tuple[int, int]
    step: tuple[int, int]
    body: tuple[int, int]


@dataclass(eq=False, slots=True)
class _Item:
    """A statement, tokens [start, stop), and the variables that it can see.

    `kind`: "plain", "declaration", "assignment" (to one variable, and nothing else), "collective", "group" (as it is,
    on the threadgroup's level), "barrier", "if", "for", "while", "do", "block", "jump".
    """

    kind: str
    start: int
    stop: int
    scope: dict[str, _Variable]
    declarators: list[_Declarator] = field(default_factory=list)
    assigned: _Variable | None = None
    collectives: list[int] = field(default_factory=list)
    condition: tuple[int, int] | None = None
    first: _Item | None = None
    steps: list[_Item] = field(default_factory=list)
    body: list[_Item] = field(default_factory=list)
    otherwise: list[_Item] | None = None


class Splitter:
    """Makes loops of one kernel.

    Parameters
    ----------
    rewriter : Rewriter
    kernel : Kernel
    strides : bool
        Whether threads step through memory side by side, which puts what surrounds such loops into regions of its own.

    Raises
    ------
    NotSplitError
    """

    def __init__(self, rewriter: Rewriter, kernel: Kernel, *, strides: bool = True) -> None:
        self._strides = strides
        self._rewriter = rewriter
        self._kernel = kernel
        self._tokens = rewriter.tokens
        self._text = rewriter.tokens.text
        self._inside = rewriter.attributes.inside
        self._output = rewriter.output(kernel)  # a copy
        self._count = 0
        self._lines: list[str] = []
        self._memory = "0"
        self._refuse()
        function = kernel.function
        self._templates: set[str] = set()
        if function.template is not None:
            self._templates = {self._text[index] for index in range(*function.template)}
        self._variables: list[_Variable] = []
        self._parameters = self._read_parameters()
        scope = {variable.name: variable for variable in self._parameters}
        body, stop = function.body + 1, function.stop - 1
        self._tail = self._find_tail(body, stop)
        self._items = self._block(body, self._tail, scope)
        self._scope = self._last_scope
        self._find_uniform()

    def output(self) -> list[str]:
        """Return what takes the place of each token, as `Rewriter.output` does."""
        function = self._kernel.function
        output = list(self._output)
        output[function.head] = f"__attribute__((noinline)) {output[function.head]}"
        first = "const ::mslc::split_group &mslc_given, char *__restrict mslc_scratch"
        output[function.opening] = f"({first}{', ' if self._parameters else ''}"
        for variable, name in zip(self._parameters, self._parameter_tokens, strict=True):
            output[name] = f"{variable.name}_mslc"
        self._emit("const ::mslc::split_group mslc_group = mslc_given;")
        for variable in self._parameters:
            self._begin_parameter(variable)
        self._emit_items(self._items, function.stop - 1)
        self._emit_tail()
        output[function.body : function.stop] = [""] * (function.stop - function.body)
        behind = self._output[function.stop - 1].removeprefix("}")
        output[function.body] = "{ " + "\n".join(self._lines)
        output[function.stop - 1] = "}" + behind
        return output

    @staticmethod
    def expression(text: str) -> str:
        """Return the address of the kernel's function, out of that of the function with the parameters it had."""
        return text.replace("static_cast<void (*)(", "static_cast<void (*)(const ::mslc::split_group &, char *, ", 1)

    # ---------------------------------------------------------------- what is refused at once

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

    def _meets(self, index: int) -> bool:
        if self._tokens.kind[index] != IDENTIFIER:
            return False
        word = self._text[index]
        if COLLECTIVE_TYPE.fullmatch(word):
            return True
        return self._text[index + 1] in ("(", "<") and COLLECTIVE_CALL.fullmatch(word) is not None

    def _has_meeting(self, start: int, stop: int) -> bool:
        return any(self._meets(index) for index in range(start, stop))

    # ---------------------------------------------------------------- parameters

    def _read_parameters(self) -> list[_Variable]:
        function = self._kernel.function
        parts = split_list(self._tokens, function.opening + 1, function.closing)
        parts = [[index for index in part if not self._inside[index]] for part in parts]
        parts = [part for part in parts if part and [self._text[index] for index in part] != ["void"]]
        self._parameter_tokens: list[int] = []
        variables: list[_Variable] = []
        for part, parameter in zip(parts, self._kernel.parameters, strict=True):
            token = declared_name(self._tokens, part)
            words = [self._text[index] for index in part]
            if token is None or "[" in words or "(" in words:
                raise NotSplitError(f"parameter '{parameter.name}' is no plain name")
            role = parameter.role.removeprefix("mslc::").partition(",")[0]
            variable = _Variable(parameter.name, "uniform", f"{parameter.name}_mslc")
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

    def _begin_parameter(self, variable: _Variable) -> None:
        if variable.form == "uniform" and variable.is_reference:
            place = f"{variable.name}_mslc"
            self._emit(f"const ::mslc::split_constant<__remove_cvref(decltype({place}))> {place}c({place});")
            variable.place = f"{place}c.value()"
        elif variable.form == "array":
            given = variable.place
            self._declare_array(variable)
            self._emit(f"MSLC_FOR_THREADS(mslc_group) {{ {variable.place}[mslc_row + mslc_x] = {given}; }}")

    # ---------------------------------------------------------------- statements

    def _find_tail(self, start: int, stop: int) -> int:
        """Where the statements begin at which no threads meet any more."""
        tail = index = start
        while index < stop:
            following = self._statement_end(index)
            if self._has_meeting(index, following):
                tail = following
            index = following
        return tail

    def _statement_end(self, index: int) -> int:
        text, partner = self._text, self._tokens.partner
        word = text[index]
        if word == "{":
            return partner[index] + 1
        if word in ("for", "while", "switch"):
            return self._statement_end(self._condition_end(index))
        if word == "if":
            end = self._statement_end(self._condition_end(index))
            return self._statement_end(end + 1) if text[end] == "else" else end
        if word == "do":
            end = self._statement_end(index + 1)
            return partner[end + 1] + 2
        while text[index] != ";":
            if text[index] in ("(", "[", "{"):
                index = partner[index]
            index += 1
        return index + 1

    def _condition_end(self, index: int) -> int:
        """Return the token behind the condition of the `if` or loop at `index`."""
        opening = index + 2 if self._text[index + 1] == "constexpr" else index + 1
        if self._text[opening] != "(":
            raise NotSplitError(f"'{self._text[index]}' without a condition")
        return self._tokens.partner[opening] + 1

    def _block(self, start: int, stop: int, outer: dict[str, _Variable]) -> list[_Item]:
        """Read the statements [start, stop), whose `_Item`s see what is declared before them."""
        items: list[_Item] = []
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

    def _statement(self, start: int, stop: int, scope: dict[str, _Variable]) -> _Item:
        word = self._text[start]
        meets = self._has_meeting(start, stop)
        jumps = self._jumps(start, stop)
        item = _Item("plain", start, stop, scope)
        if word == "threadgroup" and "struct mslc_threadgroup_" in self._output[start]:
            return self._threadgroup(item)
        if word in ("static", "const", "constexpr", "alignas") and "struct mslc_threadgroup_" in self._output[start]:
            return self._threadgroup(item)
        if word in _DECLARE_TYPES and not meets:
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

    def _jumps(self, start: int, stop: int) -> bool:
        """Whether a statement may end more than itself: by a return, or by a break of a loop around it."""
        index = start
        while index < stop:
            word = self._text[index]
            if word == "return":
                return True
            if word in ("break", "continue"):
                return True
            if word in ("for", "while", "do", "switch"):
                end = self._statement_end(index)
                words = self._text[index:end]
                if "return" in words or ("continue" in words and word == "switch"):
                    return True
                index = end
            else:
                index += 1
        return False

    def _is_barrier(self, start: int, stop: int) -> bool:
        index = start + 2 if self._text[start : start + 2] == ["metal", "::"] else start
        if self._text[index] not in _BARRIERS or self._text[index + 1] != "(":
            return False
        closing = self._tokens.partner[index + 1]
        words = self._text[index + 2 : closing]
        return self._text[closing + 1] == ";" and closing + 2 == stop and "(" not in words

    def _threadgroup(self, item: _Item) -> _Item:
        """Variables in threadgroup memory: references that all regions see."""
        item.kind = "group"
        names = re.findall(r"auto &(\w+) = mslc_threadgroup_\w+\.\w+;", self._output[item.stop - 1])
        item.declarators = [_Declarator(_Variable(name, "shared", name), (0, 0), None) for name in names]
        return item

    def _if(self, item: _Item) -> None:
        closing = self._condition_end(item.start)
        opening = self._tokens.partner[closing - 1]
        item.kind, item.condition = "if", (opening + 1, closing - 1)
        end = self._statement_end(closing)
        item.body = self._block(closing, end, item.scope)
        if end < item.stop:
            item.otherwise = self._block(end + 1, item.stop, item.scope)

    def _for(self, item: _Item) -> None:
        closing = self._condition_end(item.start)
        first = item.start + 2
        condition = self._statement_end(first)
        steps = self._tokens.find(";", condition) + 1
        if steps > closing - 1:
            raise NotSplitError("a loop over a range")
        item.kind, item.condition = "for", (condition, steps - 1)
        scope = item.scope
        if condition > first + 1:
            item.first = self._plain(_Item("plain", first, condition, scope))
            if item.first.kind not in ("declaration", "assignment"):
                raise NotSplitError("a loop that begins with neither a declaration nor an assignment")
            new = {declarator.variable.name: declarator.variable for declarator in item.first.declarators}
            if not scope.keys().isdisjoint(new):
                raise NotSplitError("a loop's variable hides another")
            scope = {**scope, **new}
        for part in split_list(self._tokens, steps, closing - 1):
            step = _Item("plain", part[0], part[-1] + 1, scope)
            self._find_assigned(step)
            if step.assigned is None:
                raise NotSplitError("a loop that goes on by more than assignments")
            step.kind = "assignment"
            item.steps.append(step)
        item.scope = scope
        item.body = self._block(closing, item.stop, scope)

    def _plain(self, item: _Item) -> _Item:
        """A statement at which no threads meet."""
        if self._text[item.start] not in _KEYWORDS | {"{"}:
            self._find_declaration(item)
            if not item.declarators:
                self._refuse_declaration(item)
                self._find_assigned(item)
                if item.assigned is not None:
                    item.kind = "assignment"
        return item

    def _refuse_declaration(self, item: _Item) -> None:
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

    def _find_assigned(self, item: _Item) -> None:
        """`v = e`, `v += e`, `v++`, `++v`, alone in the statement."""
        text = self._text
        start, stop = item.start, item.stop - (text[item.stop - 1] == ";")
        if text[start] in _STEPS and stop == start + 2:
            item.assigned = item.scope.get(text[start + 1])
            return
        is_step = text[start + 1] in _STEPS and stop == start + 2
        if is_step or ((width := self._assignment_at(start + 1)) and not self._changes(start + 1 + width, stop)):
            item.assigned = item.scope.get(text[start])

    def _assignment_at(self, index: int) -> int:
        """How many tokens the assignment operator at `index` has; 0 if there is none."""
        if self._text[index] in _ASSIGNMENTS:
            return 1
        is_shift = self._text[index] == ">" and self._text[index + 1] == ">="  # `>>` is two tokens
        return 2 if is_shift else 0

    def _changes(self, start: int, stop: int) -> bool:
        """Whether an expression assigns to something."""
        return any(self._text[index] in _STEPS or self._assignment_at(index) for index in range(start, stop))

    # ---------------------------------------------------------------- declarations

    def _find_declaration(self, item: _Item) -> None:
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
        self, item: _Item, index: int, type_text: str, is_const: bool, is_constexpr: bool, is_reference: bool
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
            variable = _Variable(self._text[name], "uniform", "", type_text, is_const, is_constexpr, is_reference)
            initializer = (behind, stop) if behind < stop else None
            if behind > name + 1 or initializer is None or is_reference:
                variable.form = "array"
            item.declarators.append(_Declarator(variable, (name + 1, behind), initializer))
            self._variables.append(variable)
        item.kind = "declaration"

    # ---------------------------------------------------------------- SIMD-group functions

    def _collective(self, item: _Item) -> None:
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

    def _first_assignment(self, item: _Item) -> int:
        for index in range(item.start, item.stop):
            if width := self._assignment_at(index):
                return index + width
        return item.start

    # ---------------------------------------------------------------- uniformity

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

    def _to_array(self, variable: _Variable) -> None:
        if variable.form != "uniform":
            return
        if not variable.type_text:
            raise NotSplitError(f"parameter '{variable.name}' is changed")
        variable.form = "array"

    def _demote(self, items: list[_Item]) -> None:
        for item in items:
            for part in (*([item.first] if item.first else ()), *item.steps):
                self._demote([part])
            if item.kind == "declaration":
                for declarator in item.declarators:
                    if declarator.initializer and not self._is_uniform(*declarator.initializer, item.scope):
                        self._to_array(declarator.variable)
            elif item.kind == "assignment" and item.assigned is not None:
                variable = item.assigned
                name = self._text[item.start] if self._text[item.start] not in _STEPS else self._text[item.start + 1]
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

    def _is_changed(self, name: str, start: int, stop: int) -> bool:
        """Whether code seems to change a variable. Of what this misses clang says that the variable is const."""
        for index in range(start, stop):
            if self._text[index] != name or self._text[index - 1] in (".", "->"):
                continue
            if self._text[index - 1] in _STEPS or self._text[index + 1] in _STEPS or self._assignment_at(index + 1):
                return True
            if self._text[index - 1] == "&" and self._text[index - 2] in ("(", ",", "=", "{", ";", "return"):
                return True
            if self._text[index + 1] == "." and (self._assignment_at(index + 3) or self._text[index + 3] in _STEPS):
                return True
        return False

    def _is_uniform(self, start: int, stop: int, scope: dict[str, _Variable]) -> bool:
        """Whether an expression surely has one value for all threads, and does nothing else than have it."""
        first = start + 1 if self._text[start] == "=" else start
        if self._changes(first, stop):
            return False
        return all(self._is_uniform_token(index, scope) for index in range(first, stop))

    def _is_uniform_token(self, index: int, scope: dict[str, _Variable]) -> bool:
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
        return word in _PURE or word in _TYPES or behind not in ("(", "<", "{")

    def _check_control(self, items: list[_Item]) -> None:
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

    def _is_group_level(self, item: _Item) -> bool:
        if item.kind == "plain":
            return False
        if item.kind == "declaration":
            return all(declarator.variable.form == "uniform" for declarator in item.declarators)
        if item.kind == "assignment":
            return item.assigned is not None and item.assigned.form == "uniform"
        return True

    # ---------------------------------------------------------------- text

    def _emit(self, line: str) -> None:
        self._lines.append(line)

    def _render(self, indices: list[int] | range, scope: dict[str, _Variable] | None = None) -> str:
        """Return code; with a scope that of the threadgroup's level, where a variable goes by its place."""
        parts: list[str] = []
        end = -1
        for index in indices:
            word = self._output[index]
            variable = scope.get(self._text[index]) if scope else None
            if variable is not None and self._text[index - 1] not in (".", "->", "::"):
                before, _, behind = word.rpartition(variable.name)
                word = before + (variable.place or variable.name) + behind
            if word:
                parts += ["" if self._tokens.start[index] == end else " ", word]
                end = self._tokens.start[index] + len(self._text[index])
        return "".join(parts)

    def _on_group_level(self, start: int, stop: int, scope: dict[str, _Variable]) -> str:
        return self._render(range(start, stop), scope)

    def _mentions(self, name: str, start: int, stop: int) -> bool:
        return any(
            self._text[index] == name and self._text[index - 1] not in (".", "->") for index in range(start, stop)
        )

    def _bindings(self, ranges: list[tuple[int, int]], scope: dict[str, _Variable]) -> str:
        """Declarations, for one thread, of the variables that code mentions."""
        parts = []
        for name, variable in scope.items():
            if not any(self._mentions(name, start, stop) for start, stop in ranges):
                continue
            if variable.form == "array":
                const = "const " if variable.is_const else ""
                parts.append(f"{const}auto &{name} = {variable.place}[mslc_at];")
            elif variable.form == "input":
                value_type = f"__remove_cvref(decltype({variable.place}))"
                value = f"::mslc::split_input<::mslc::{variable.input}, {value_type}>(mslc_group, mslc_thread)"
                parts.append(f"const {value_type} {name} = {value};")
            elif variable.form == "uniform":
                word = "constexpr auto" if variable.is_constexpr else "const auto"
                parts.append(f"{word} {'&' if variable.is_reference else ''}{name} = {variable.place};")
            elif variable.form == "shared" and variable.place != name:
                parts.append(f"auto &{name} = {variable.place};")
        return " ".join(parts)

    def _declare_array(self, variable: _Variable, suffix: str = "") -> None:
        self._count += 1
        number = self._count
        variable.form, variable.place = "array", f"{variable.name}_mslc{number}"
        self._declare_per_thread(f"{variable.type_text} {suffix}", variable.place)

    def _declare_per_thread(self, type_text: str, place: str) -> None:
        self._count += 1
        end = f"mslc_end_{self._count}"
        self._emit(f"::mslc::per_thread<{type_text}> {place}(mslc_scratch + {self._memory});")
        self._emit(f"constexpr unsigned long {end} = ::mslc::scratch_end<{type_text}>({self._memory});")
        self._emit(f'static_assert({end} <= MSLC_SCRATCH_BYTES, "too much memory for each thread");')
        self._memory = end

    def _emit_items(self, items: list[_Item], stop: int) -> None:
        """Write the items of a block that ends at token `stop`."""
        memory = self._memory
        run: list[_Item] = []
        for item in items:
            stride = self._stride(item)
            if stride is None and not self._is_group_level(item):
                run.append(item)
                continue
            self._emit_region(run, stop)
            run = []
            if stride is not None:
                self._emit_stride(item, stride)
            elif item.kind == "collective":
                run.append(self._emit_meetings(item))
            else:
                self._emit_item(item)
        self._emit_region(run, stop)
        if items is not self._items:
            self._memory = memory

    # ---------------------------------------------------------------- loops over memory

    def _stride(self, item: _Item) -> _Stride | None:
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
        stride = _Stride(text[start + 2], name, first, (condition, step - 1), (step + 2, stop), body)
        words = set(text[closing : item.stop])
        if words & {"for", "while", "do", "switch", "break", "continue", "return", "static"}:
            return None
        if self._is_changed(name, *stride.body) or not self._is_uniform(*stride.step, item.scope):
            return None
        is_simple = self._is_made_of_inputs(stride.first, item.scope)
        scope = {**item.scope, name: _Variable(name, "input")}
        return stride if is_simple and self._is_made_of_inputs(stride.condition, scope) else None

    def _is_made_of_inputs(self, tokens: tuple[int, int], scope: dict[str, _Variable]) -> bool:
        """Whether an expression is made of numbers, of what a thread is told of itself, and of what all share."""
        text, kind = self._text, self._tokens.kind
        if self._changes(*tokens) or {"[", "*=", "->", "{"} & set(text[tokens[0] : tokens[1]]):
            return False
        for index in range(*tokens):
            if kind[index] == IDENTIFIER and text[index] not in _TYPES and text[index - 1] != ".":
                variable = scope.get(text[index])
                if variable is None or variable.form not in ("input", "uniform") or text[index + 1] == "(":
                    return False
        return True

    def _emit_stride(self, item: _Item, stride: _Stride) -> None:
        self._count += 1
        number, kind = self._count, stride.type
        going, round_ = f"mslc_going_{number}", f"mslc_round_{number}"
        bindings = self._bindings([(item.start, item.stop)], item.scope)
        head = f"MSLC_FOR_THREADS(mslc_group) {{ {self._thread()} {bindings}"
        # In the type's own width, and so with what overflows the same.
        value = f"const {kind} {stride.name} = static_cast<{kind}>({self._render(range(*stride.first))} + {round_});"
        memory = self._memory
        self._declare_per_thread("uchar", going)
        self._emit(f"MSLC_FOR_THREADS(mslc_group) {{ {going}[mslc_row + mslc_x] = 1; }}")
        step = self._on_group_level(*stride.step, item.scope)
        self._emit(
            f"for ({kind} {round_} = 0;; {round_} = static_cast<{kind}>({round_} + ({step}))) {{ uint mslc_left = 0;"
        )
        condition = self._render(range(*stride.condition))
        self._emit(f"{head} {value} const bool mslc_goes = {going}[mslc_at] && ({condition});")
        self._emit(f"{going}[mslc_at] = mslc_goes; mslc_left += mslc_goes; }}")
        self._emit("if (mslc_left == 0) { break; }")
        body = self._render(range(*stride.body))
        self._emit(f"if (mslc_left == mslc_group.state.count) {{ {head} {value} {{ {body} }} }} }}")
        self._emit(f"else {{ {head} {value} if ({going}[mslc_at]) {{ {body} }} }} }} }}")
        self._memory = memory

    def _emit_region(self, run: list[_Item], stop: int) -> None:
        """Write the loop over the threads for some statements of a block that ends at token `stop`."""
        if not run:
            return
        code: list[str] = []
        scope = dict(run[0].scope)
        for item in run:
            if item.kind == "declaration":
                code.append(self._declaration(item, run[-1].stop, stop, scope))
            else:
                code.append(self._render(range(item.start, item.stop)))
        bindings = self._bindings([(item.start, item.stop) for item in run], scope)
        self._emit(f"MSLC_FOR_THREADS(mslc_group) {{ {self._thread()} {bindings} {{")
        self._lines += code
        self._emit("} }")

    def _thread(self) -> str:
        return (
            "const ::mslc::thread_state mslc_thread{{mslc_x, mslc_y, mslc_z}, mslc_row + mslc_x}; "
            "const ::mslc::size_t mslc_at = ::mslc::size_t(mslc_row) + mslc_x;"
        )

    def _declaration(self, item: _Item, end: int, stop: int, scope: dict[str, _Variable]) -> str:
        """Return a declaration's code in a region that ends at token `end`, in a block that ends at `stop`."""
        names = [declarator.variable.name for declarator in item.declarators]
        if not any(self._mentions(name, end, stop) or self._is_pointed_to(name, item.stop, end) for name in names):
            for declarator in item.declarators:
                declarator.variable.form = "local"
            return self._render(range(item.start, item.stop))
        code = ""
        for declarator in item.declarators:
            variable = declarator.variable
            if variable.is_reference or re.search(r"\bauto\b", variable.type_text):
                raise NotSplitError(f"'{variable.name}' is alive across a barrier, and its type is not told")
            if variable.is_private_pointer:
                raise NotSplitError(f"'{variable.name}' is alive across a barrier, and may point to a variable")
            suffix = self._on_group_level(*declarator.suffix, item.scope)
            self._declare_array(variable, suffix)
            scope[variable.name] = variable
            code += self._initialization(declarator, suffix)
        return code

    def _is_pointed_to(self, name: str, start: int, stop: int) -> bool:
        """Whether the address of a variable seems to be taken: another one may keep it alive."""
        for index in range(start, stop):
            if self._text[index] == name and self._text[index - 1] == "&":
                before = index - 2
                if self._tokens.kind[before] == OPERATOR and self._text[before] not in (")", "]"):
                    return True
        return False

    def _initialization(self, declarator: _Declarator, suffix: str) -> str:
        variable = declarator.variable
        target = f"{variable.place}[mslc_at]" if variable.is_const else variable.name
        if declarator.initializer is None:
            return f"{variable.place}.begin({target});"
        value = self._render(range(*declarator.initializer))
        begin = f"{{ {variable.type_text} mslc_initial {suffix} {value}; "
        if suffix:
            return begin + f"__builtin_memcpy(&{target}, &mslc_initial, sizeof mslc_initial); }}"
        return begin + f"{target} = mslc_initial; }}"

    def _emit_item(self, item: _Item) -> None:
        """Write an item of the threadgroup's level."""
        if item.kind == "barrier":
            return
        if item.kind == "jump":
            self._emit(self._render(range(item.start, item.stop)))
        elif item.kind == "group":
            self._emit(self._on_group_level(item.start, item.stop, item.scope))
        elif item.kind == "declaration":
            self._emit(self._uniform_declaration(item))
        elif item.kind == "assignment":
            self._emit(self._on_group_level(item.start, item.stop, item.scope))
        else:
            self._emit_control(item)

    def _uniform_declaration(self, item: _Item) -> str:
        code = ""
        for declarator in item.declarators:
            variable = declarator.variable
            self._count += 1
            variable.place = f"{variable.name}_mslc{self._count}"
            const = "constexpr " if variable.is_constexpr else "const " if variable.is_const else ""
            assert declarator.initializer is not None
            value = self._on_group_level(*declarator.initializer, item.scope)
            code += f"{const}{variable.type_text} {variable.place} {value}; "
            if variable.type_text == "auto":
                code += f"static_assert(!__is_pointer(decltype({variable.place})));"  # to what, the type does not tell
        return code

    def _emit_control(self, item: _Item) -> None:
        assert item.condition is not None or item.kind == "block"
        if item.kind == "for":
            self._emit("{")
            if item.first is not None:
                self._emit_item(item.first)
        condition = self._on_group_level(*item.condition, item.scope) if item.condition else ""
        if item.kind == "for":
            steps = ", ".join(self._on_group_level(step.start, step.stop, step.scope) for step in item.steps)
            self._emit(f"for (; {condition}; {steps}) {{")
        elif item.kind in ("while", "if"):
            word = "if constexpr" if self._text[item.start + 1] == "constexpr" else item.kind
            self._emit(f"{word} ({condition}) {{")
        elif item.kind == "do":
            self._emit("do {")
        else:
            self._emit("{")
        self._emit_items(item.body, item.stop)
        if item.otherwise is not None:
            self._emit("} else {")
            self._emit_items(item.otherwise, item.stop)
        self._emit(f"}} while ({condition});" if item.kind == "do" else "}")
        if item.kind == "for":
            self._emit("}")

    def _emit_meetings(self, item: _Item) -> _Item:
        """Let the threads of each SIMD-group meet, and return the statement with what that gives to each."""
        for index in reversed(item.collectives):  # those within another's operand come behind it
            self._emit_meeting(index, item.scope)
        return replace(item, kind="declaration" if item.declarators else "plain")

    def _emit_meeting(self, index: int, scope: dict[str, _Variable]) -> None:
        name = self._text[index]
        closing = self._tokens.partner[index + 1]
        arguments = split_list(self._tokens, index + 2, closing)
        with_delta = _WITH_DELTA.fullmatch(name) is not None
        if len(arguments) != (2 if with_delta else 1):
            raise NotSplitError(f"'{name}' with {len(arguments)} arguments")
        self._count += 1
        number = self._count
        operand, result = f"mslc_operand_{number}", f"mslc_result_{number}"
        value = self._render(arguments[0])
        delta = self._render(arguments[1]) if with_delta else "0"
        call = f"metal::{name}({value}{f', {delta}' if with_delta else ''})"
        self._emit(f"auto {operand} = [&](const ::mslc::thread_state &mslc_thread) __attribute__((always_inline)) {{")
        self._emit(f"const ::mslc::size_t mslc_at = mslc_thread.index; {self._bindings([(index, closing)], scope)}")
        self._emit(f"using mslc_type = decltype({call});")
        self._emit(f"return ::mslc::split_operand<mslc_type>{{({value}), static_cast<ushort>({delta})}}; }};")
        self._declare_per_thread(f"decltype({operand}(::mslc::thread_state()).value)", result)
        width = 32 if name.startswith("simd") else 4
        self._emit(f"::mslc::split_collective<{width}, ::mslc::split_{name}>(mslc_group, {operand}, {result});")
        start = index - 2 if self._text[index - 2 : index] == ["metal", "::"] else index
        self._output[start : closing + 1] = [""] * (closing + 1 - start)
        self._output[start] = f"{result}[mslc_at]"

    def _emit_tail(self) -> None:
        """Write the statements behind the last meeting: one region, which a thread may leave early."""
        stop = self._kernel.function.stop - 1
        if not any(self._output[index] for index in range(self._tail, stop)):
            return
        self._emit(f"MSLC_FOR_THREADS(mslc_group) {{ {self._thread()}")
        self._emit(self._bindings([(self._tail, stop)], self._scope))
        code = self._render(range(self._tail, stop))
        if "return" in self._text[self._tail : stop]:
            self._emit(f"[&]() __attribute__((always_inline)) {{ {code} }}(); }}")
        else:
            self._emit(f"{{ {code} }} }}")
