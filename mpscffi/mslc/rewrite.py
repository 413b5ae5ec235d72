"""Rewrites Metal source as C++: a few rules on tokens, each answering one way in which Metal is not C++.

Types are left to clang and to the prelude. Every rule keeps the lines, so that what clang says of a line of the result
holds for the same line of the source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .calls import Calls
from .declarations import (
    Attribute,
    Attributes,
    Declarations,
    Function,
    Instantiation,
    Statement,
    find_declarations,
)
from .kernels import ADDRESS_SPACES, Kernel, ParameterError, ParameterReader, declared_name, split_list
from .lengths import vector_lengths
from .numbers import integer_value
from .overloads import Overloads
from .refusals import DeclarationRules, refused_words
from .swizzles import written_chains
from .tokens import IDENTIFIER, NUMBER, Tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

_DECIMAL = re.compile(r"[.eEpP]")
#: More would let no launch be a short one.
_MAX_WORK = 16384


class RewriteError(Exception):
    """Something that Metal, or the host device, does not take: the text, and the offset of what it is about.

    `others` are more of the kind in the same source.
    """

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset
        self.others: list[RewriteError] = []


@dataclass(slots=True)
class FunctionConstant:
    """A `[[function_constant(index)]]`. Its value is the macro `macro`, so that one text serves all values."""

    name: str
    index: int
    type_name: str
    macro: str
    is_required: bool = True


@dataclass(slots=True)
class Entry:
    """A kernel that can be asked for by name.

    `expression` is the address of its function in C++, `max_threads` the limit of its threadgroups as an expression,
    "" for none. `offset` tells where in the text it is declared.
    """

    name: str
    kernel: Kernel
    expression: str
    max_threads: str
    is_instantiation: bool
    offset: int


class Rewriter:
    """One source, rewritten.

    Parameters
    ----------
    source : str
        Metal source without directives.
    has_library : bool
        Whether it includes a header of Metal's library.

    Attributes
    ----------
    entries : dict of str to Entry
    constants : dict of str to FunctionConstant
        By name.
    calls : Calls
    tokens : Tokens

    Raises
    ------
    SourceError
        If the structure cannot be followed, as with a missing brace.
    RewriteError
    """

    def __init__(self, source: str, has_library: bool = True) -> None:
        self.tokens = Tokens(source)
        self.attributes = Attributes(self.tokens)
        self.entries: dict[str, Entry] = {}
        self.constants: dict[str, FunctionConstant] = {}
        self._kernels: dict[str, list[Kernel]] = {}
        self._half_names = {"half", "bfloat"}
        self._threadgroup_variables = 0
        self._refuse(refused_words(self.tokens, has_library))
        declarations = find_declarations(self.tokens, self.attributes)
        self._class_names = {self.tokens.text[item.key + 1] for item in declarations.classes}
        self._refuse(DeclarationRules(self.tokens, self.attributes, declarations).broken())
        self.calls = Calls(self.tokens, declarations)
        self._attributes()
        self._literals()
        self._vector_lengths(declarations)
        self._swizzles()
        overloads = Overloads(self.tokens, self.attributes, declarations)
        self._refuse(overloads.refused)
        for start, stop in overloads.duplicates:
            self.tokens.erase(start, stop)
        for statement in declarations.statements:
            self._function_constant(statement)
        for function in declarations.functions:
            self._function(function)
        for instantiation in declarations.instantiations:
            self._instantiation(instantiation)
        self._defined_constants()
        self._spins()
        self._casts()
        self._address_spaces()
        self._initializers = self._find_initializers(declarations)

    def output(self, kernel: Kernel | None) -> list[str]:
        """Return the C++ that takes the place of each token.

        With a kernel, all other kernels that it does not call are declared alone, so that clang has less to do.
        """
        output = list(self.tokens.output)
        if kernel is None:
            return output
        needed = {id(function) for function in self.calls.reachable(kernel.function)}
        for function in self.calls.kernels:
            if id(function) not in needed and output[function.body]:
                behind = output[function.stop - 1].removeprefix("}")
                output[function.body : function.stop] = [""] * (function.stop - function.body)
                output[function.body] = ";"
                output[function.stop - 1] = behind
        return output

    def used_constants(self, kernel: Function) -> list[FunctionConstant]:
        """Return the function constants that a kernel may read, also by way of other constants."""
        names = self.calls.identifiers(kernel)
        todo = [name for name in names if name in self._initializers]
        while todo:
            new = self._initializers[todo.pop()] - names
            names |= new
            todo += [name for name in new if name in self._initializers]
        return [constant for constant in self.constants.values() if constant.name in names]

    def _find_initializers(self, declarations: Declarations) -> dict[str, set[str]]:
        """For each variable outside of functions, the identifiers in its declaration."""
        found: dict[str, set[str]] = {}
        for statement in declarations.statements:
            if statement.opening is not None:
                continue
            words = [
                index
                for index in range(statement.start, statement.stop)
                if self.tokens.kind[index] == IDENTIFIER and not self.attributes.inside[index]
            ]
            name = declared_name(self.tokens, list(range(statement.start, statement.stop - 1)))
            if name is not None:
                found.setdefault(self.tokens.text[name], set()).update(self.tokens.text[index] for index in words)
        return found

    def _error(self, message: str, token: int) -> RewriteError:
        return RewriteError(message, self.tokens.start[token])

    # ---------------------------------------------------------------- what is refused

    def _refuse(self, refusals: Iterable[tuple[str, int]]) -> None:
        """Raise what is refused, all of it at once and in the order of the source."""
        found = sorted(refusals, key=lambda refusal: refusal[1])
        if found:
            first, *others = [self._error(message, token) for message, token in found]
            first.others = others
            raise first

    # ---------------------------------------------------------------- lexical rules

    def _attributes(self) -> None:
        """Clang knows none of Metal's attributes: none is left."""
        output = self.tokens.output
        for index, inside in enumerate(self.attributes.inside):
            if inside:
                output[index] = ""

    def _literals(self) -> None:
        """Give literals Metal's types: one without a suffix is a float, not a double."""
        for index, kind in enumerate(self.tokens.kind):
            if kind != NUMBER:
                continue
            text = self.tokens.text[index]
            if text[:2] in ("0x", "0X") and "p" not in text.lower():
                continue
            if text[-2:].lower() == "bf":
                self.tokens.output[index] = f"((bfloat){_as_decimal(text[:-2])}f)"
            elif text[-1] in "hH":
                self.tokens.output[index] = f"((half){_as_decimal(text[:-1])}f)"
            elif _DECIMAL.search(text) and text[-1] not in "fFlL":
                self.tokens.output[index] = text + "f"

    def _address_spaces(self) -> None:
        """There is one address space here: `constant` keeps its meaning of const, the others have none.

        Methods that are qualified by a space keep their constness; constructors have none.
        """
        text, output = self.tokens.text, self.tokens.output
        for index, word in enumerate(text):
            if output[index] != word:
                continue
            if word == "constant":
                before = index - 1
                while text[before] in ADDRESS_SPACES or self.attributes.inside[before]:
                    before -= 1
                is_const_method = text[before] == "const" and text[before - 1] == ")"
                is_constructor = text[before] == ")" and text[self.tokens.partner[before] - 1] in self._class_names
                output[index] = "" if is_const_method or is_constructor else "const"
            elif word in ADDRESS_SPACES or word in ("volatile", "kernel"):
                output[index] = ""
            elif word == "coherent":
                output[index] = ""
                if index + 1 < len(text) and text[index + 1] == "(":
                    self.tokens.erase(index + 1, self.tokens.partner[index + 1] + 1)
            elif word == "restrict":
                output[index] = "__restrict"

    def _vector_lengths(self, declarations: Declarations) -> None:
        """`template <uint N> ... vec<T, N>` deduces an int; bodies compute with the type that was declared."""
        output = self.tokens.output
        for length in vector_lengths(self.tokens, declarations):
            output[length.first : length.name] = ["int", *[""] * (length.name - length.first - 1)]
            for use in length.uses:
                output[use] = f"(({length.type_name}){self.tokens.text[use]})"

    def _swizzles(self) -> None:
        for start, stop, swizzle in written_chains(self.tokens):
            self.tokens.output[start:stop] = [swizzle, *[""] * (stop - start - 1)]

    # ---------------------------------------------------------------- functions and kernels

    def _function(self, function: Function) -> None:
        if function.stage not in (None, "kernel"):
            self.tokens.erase(function.start, function.stop)
            return
        if all(not self.tokens.output[index] for index in range(function.opening, function.body)):
            return  # a duplicate
        self._threadgroup_memory(function)
        if function.stage == "kernel":
            self._kernel(function)

    def _kernel(self, function: Function) -> None:
        reader = ParameterReader(self.tokens, self.attributes, function)
        try:
            parameters = reader.read()
        except ParameterError as error:
            raise self._error(str(error), error.token) from None
        kernel = Kernel(function, len(self.calls.kernels), parameters)
        self.calls.kernels.append(function)
        limit = next((item for item in function.attributes if item.name == "max_total_threads_per_threadgroup"), None)
        if limit is not None:
            self._limit(kernel, limit)
        work = next((item for item in function.attributes if item.name == "thread_work"), None)
        if work is not None:
            kernel.work = self._work(work)
        self._kernels.setdefault(function.name, []).append(kernel)
        if function.template is None:
            name = self._host_name(function.attributes) or function.name
            max_threads = _qualified(function.path, _limit_name(kernel)) + "::value" if kernel.max_threads else ""
            expression = "&" + _qualified(function.path, function.name)
            if len(self._kernels[function.name]) > 1 or self._is_overloaded(function):
                expression = f"static_cast<void (*)({self._parameter_types(function)})>({expression})"
            self._enter(name, kernel, expression, max_threads, False, function.opening - 1)

    def _is_overloaded(self, function: Function) -> bool:
        return len(self.calls.bodies.get(function.name, ())) > 1

    def _limit(self, kernel: Kernel, attribute: Attribute) -> None:
        """Keep a kernel's limit of threads: it may name template parameters, so it becomes a class with them."""
        kernel.max_threads = attribute.arguments
        function = kernel.function
        header = ""
        if function.template is not None:
            header = "template " + self.tokens.spelled(list(range(function.template[0], function.template[1] + 1)))
        value = self.tokens.spelled(attribute.arguments)
        self.tokens.output[function.stop - 1] += (
            f" {header} struct {_limit_name(kernel)} {{ static constexpr unsigned value = ({value}); }};"
        )

    def _work(self, attribute: Attribute) -> int:
        text = self.tokens.spelled(attribute.arguments)
        value = integer_value(text)
        if value is None or not 0 < value <= _MAX_WORK:
            raise self._error(f"'{attribute.name}' takes a number from 1 to {_MAX_WORK}, not '{text}'", attribute.start)
        return value

    def _enter(
        self, name: str, kernel: Kernel, expression: str, max_threads: str, is_instantiation: bool, token: int
    ) -> None:
        if name in self.entries:
            raise self._error(f"two kernels are named '{name}'", token)
        offset = self.tokens.start[token]
        self.entries[name] = Entry(name, kernel, expression, max_threads, is_instantiation, offset)

    def _host_name(self, attributes: list[Attribute]) -> str:
        attribute = next((item for item in attributes if item.name == "host_name"), None)
        if attribute is None:
            return ""
        return "".join(self.tokens.text[index].strip('"') for index in attribute.arguments)

    def _parameter_types(self, function: Function) -> str:
        """Return a function's parameter list as C++, names and all."""
        words = []
        for index in range(function.opening + 1, function.closing):
            word = self.tokens.text[index]
            if self.attributes.inside[index] or word in ADDRESS_SPACES - {"constant"} or word == "volatile":
                continue
            words.append("const" if word == "constant" else word)
        return " ".join(words)

    def _instantiation(self, instantiation: Instantiation) -> None:
        """Make an entry of an explicit instantiation of a kernel: it is instantiated when it is asked for."""
        name = self._host_name(instantiation.attributes)
        if not name and instantiation.stage is None:
            return
        text, partner = self.tokens.text, self.tokens.partner
        words = [
            index
            for index in range(instantiation.start, instantiation.stop - 1)
            if not self.attributes.inside[index] and text[index] != "kernel"
        ]
        last = words[-1]
        count: int | None = None
        if text[last] == ")":
            opening = partner[last]
            end = opening - 1
            start = self._name_start(end)
            types = [
                "const" if text[index] == "constant" else text[index]
                for index in range(opening + 1, last)
                if not self.attributes.inside[index] and text[index] not in ADDRESS_SPACES - {"constant"}
            ]
            count = len(split_list(self.tokens, opening + 1, last))
            prefix, suffix = f"static_cast<void (*)({' '.join(types)})>(&", ")"
        else:
            end = last
            start = self._name_start(end)
            prefix, suffix = "&", ""
        function = self.tokens.spelled(list(range(start, end + 1)))
        arguments = self._template_arguments(end)
        base = text[self.tokens.open_angle(end) - 1] if text[end] == ">" else text[end]
        kernel = self._find_kernel(base, count, instantiation)
        limit = ""
        if kernel.max_threads and arguments:
            limit = _qualified(kernel.function.path, _limit_name(kernel)) + arguments + "::value"
        expression = prefix + _qualified(instantiation.path, function) + suffix
        self.tokens.erase(instantiation.start, instantiation.stop)
        self._enter(name or function, kernel, expression, limit, True, instantiation.start)

    def _name_start(self, end: int) -> int:
        """First token of the qualified name, with template arguments, that ends at `end`."""
        text, kind = self.tokens.text, self.tokens.kind
        start = self.tokens.open_angle(end) - 1 if text[end] == ">" else end
        while text[start - 1] == "::":
            if kind[start - 2] != IDENTIFIER or text[start - 2] in ("void", "kernel"):
                return start - 1
            start -= 2
        return start

    def _template_arguments(self, end: int) -> str:
        if self.tokens.text[end] != ">":
            return ""
        return self.tokens.spelled(list(range(self.tokens.open_angle(end), end + 1)))

    def _find_kernel(self, base: str, count: int | None, instantiation: Instantiation) -> Kernel:
        """Return the kernel template of that name; of several, the one with as many parameters."""
        kernels = [kernel for kernel in self._kernels.get(base, ()) if kernel.function.template is not None]
        if count is not None and len(kernels) > 1:
            kernels = [kernel for kernel in kernels if len(kernel.parameters) == count] or kernels
        if not kernels:
            raise self._error(f"explicit instantiation of '{base}', which is no kernel template", instantiation.start)
        return kernels[0]

    # ---------------------------------------------------------------- threadgroup memory

    def _threadgroup_memory(self, function: Function) -> None:
        """Make variables in threadgroup memory references into the worker's arena.

        A declaration becomes a struct, of which the prelude gives the place: so C++ itself reads the declarators.
        """
        for index in range(function.body + 1, function.stop - 1):
            if self.tokens.text[index] == "threadgroup" and not self.attributes.inside[index]:
                start = self._declaration_start(index)
                if start is not None:
                    self._threadgroup_declaration(start, index, function)

    def _declaration_start(self, index: int) -> int | None:
        """Where the declaration begins that has `threadgroup` among its specifiers; None if it is none."""
        text, kind = self.tokens.text, self.tokens.kind
        start = index
        while True:
            before = text[start - 1]
            if before in ("{", "}", ";", ":"):
                break
            if self.attributes.inside[start - 1]:
                start -= 1
            elif before == ")" and text[self.tokens.partner[start - 1] - 1] in ("alignas", "METAL_ALIGN"):
                start = self.tokens.partner[start - 1] - 1
            elif before == ">":
                start = self.tokens.open_angle(start - 1)
            elif before == "::" or (kind[start - 1] == IDENTIFIER and before not in ("return", "typedef", "using")):
                start -= 1
            else:
                return None
        return start

    def _threadgroup_declaration(self, start: int, space: int, function: Function) -> None:
        text, kind, partner = self.tokens.text, self.tokens.kind, self.tokens.partner
        names: list[str] = []
        initializer: int | None = None
        index = space + 1
        while text[index] != ";":
            word = text[index]
            if word in ("*", "&") or (word == "(" and text[index + 1] in ("*", "&")):
                return  # a pointer to it or a reference, not a variable in it
            if word in ("=", "{"):
                initializer = index
                break
            if word == "<" and kind[index - 1] == IDENTIFIER:
                index = self.tokens.close_angle(index)
            elif word in ("(", "["):
                if word == "[" and kind[index - 1] == IDENTIFIER:
                    names.append(text[index - 1])
                index = partner[index]
            elif word == "," and kind[index - 1] == IDENTIFIER:
                names.append(text[index - 1])
            index += 1
        if kind[index - 1] == IDENTIFIER and not self.attributes.inside[index - 1]:
            names.append(text[index - 1])
        if function.stage != "kernel":
            raise self._error(
                "a variable in the threadgroup address space can be declared in a kernel alone; "
                f"'{function.name}' is none: let it take a pointer to threadgroup memory",
                space,
            )
        if initializer is not None:
            index = self._zero_initializer(initializer)
        for word_index in range(start, index):
            if text[word_index] in ("static", "constexpr", "threadgroup"):
                self.tokens.output[word_index] = ""
        number = self._threadgroup_variables
        self._threadgroup_variables += 1
        place = f"mslc_threadgroup_{number}"
        self.tokens.output[start] = f"struct {place}_type {{ " + self.tokens.output[start]
        references = " ".join(f"auto &{name} = {place}.{name};" for name in names)
        is_zeroed = ", true" if initializer is not None else ""
        self.tokens.output[index] = (
            f"; }}; auto &{place} = ::mslc::threadgroup_variable<{number}, {place}_type{is_zeroed}>(); {references}"
        )

    def _zero_initializer(self, start: int) -> int:
        """Erase the initializer that begins at `start`, which must be of zeros, and give the `;` behind it."""
        stop = self.tokens.find(";", start)
        words = self.tokens.text[start:stop]
        if any(word not in ("=", "{", "}") and word.strip("0.fFhHuU") for word in words):
            raise self._error("a variable in threadgroup memory can be initialized with zeros alone", start)
        self.tokens.erase(start, stop)
        return stop

    # ---------------------------------------------------------------- function constants

    def _function_constant(self, statement: Statement) -> None:
        attribute = next((item for item in statement.attributes if item.name == "function_constant"), None)
        if statement.stage not in (None, "kernel"):
            self.tokens.erase(statement.start, statement.stop)
        if attribute is None or statement.is_member or statement.opening is not None:
            return
        plain = [index for index in range(statement.start, statement.stop - 1) if not self.attributes.inside[index]]
        name_token = declared_name(self.tokens, plain)
        if name_token is None:
            raise self._error("a function constant needs a name", statement.start)
        index = integer_value(self.tokens.spelled(attribute.arguments))
        if index is None or not 0 <= index <= 65535:
            raise self._error("the index of a function constant must be a number from 0 to 65535", attribute.start)
        words = [
            place
            for place in plain
            if place < name_token and self.tokens.text[place] not in ("constant", "const", "constexpr", "static")
        ]
        name = self.tokens.text[name_token]
        constant = FunctionConstant(name, index, self.tokens.spelled(words), f"MSLC_CONSTANT_{len(self.constants)}")
        self.constants[name] = constant
        self.tokens.output[statement.stop - 1] = f" = {constant.macro};"

    def _defined_constants(self) -> None:
        """is_function_constant_defined is answered at translation, as a value is."""
        text = self.tokens.text
        for index in range(len(text) - 2):
            if text[index] != "is_function_constant_defined" or text[index + 1] != "(":
                continue
            closing = self.tokens.partner[index + 1]
            constant = self.constants.get(text[closing - 1])
            if constant is None:
                raise self._error(f"'{text[closing - 1]}' is no function constant", index)
            constant.is_required = False
            self.tokens.erase(index, closing + 1)
            self.tokens.output[index] = f"({constant.macro}_DEFINED)"

    # ---------------------------------------------------------------- expressions

    def _spins(self) -> None:
        """Let other threads run in a loop that waits for one of them."""
        for opening in self.calls.spins:
            self.tokens.output[opening] += "::mslc::yield(), "

    def _casts(self) -> None:
        """Clang refuses casts between half and bfloat: operands of such casts pass through a helper."""
        text, kind = self.tokens.text, self.tokens.kind
        self._find_half_names()
        for index in range(len(text) - 2):
            word = text[index]
            if not self.tokens.output[index]:
                continue
            if word == "static_cast" and text[index + 1] == "<":
                closing = self.tokens.close_angle(index + 1)
                if text[closing + 1] == "(" and not {"*", "&"} & set(text[index:closing]):
                    type_name = " ".join(self.tokens.output[index + 2 : closing])
                    self._wrap(closing + 2, self.tokens.partner[closing + 1] - 1, type_name)
            elif word not in self._half_names:
                continue
            elif text[index + 1] == "(" and text[index - 1] not in (".", "->", "struct", "using"):
                closing = self.tokens.partner[index + 1]
                follows_type = kind[index - 1] == IDENTIFIER and text[index - 1] not in ("return", "else", "case")
                if not follows_type and closing > index + 2 and text[index + 2] not in ("*", "&"):
                    self._wrap(index + 2, closing - 1, word)
            elif text[index - 1] == "(" and text[index + 1] == ")":
                before = text[index - 2]
                is_call = (kind[index - 2] == IDENTIFIER and before != "return") or before in ("]", ">")
                end = None if is_call else self._operand_end(index + 2)
                if end is not None:
                    self._wrap(index + 2, end, word)

    def _wrap(self, first: int, last: int, type_name: str) -> None:
        if first <= last:
            self.tokens.output[first] = f"::mslc::cast_operand<{type_name}>({self.tokens.output[first]}"
            self.tokens.output[last] += ")"

    def _operand_end(self, index: int) -> int | None:
        """Last token of the operand of a cast that begins at `index`; None if it is no simple expression."""
        text, kind, partner = self.tokens.text, self.tokens.kind, self.tokens.partner
        while text[index] in ("-", "+", "!", "~", "*", "&", "++", "--"):
            index += 1
        if text[index] == "(":
            index = partner[index]
        elif kind[index] not in (IDENTIFIER, NUMBER):
            return None
        while index + 1 < len(text):
            following = text[index + 1]
            if following in ("(", "["):
                index = partner[index + 1]
            elif following in (".", "->", "::") and kind[index + 2] == IDENTIFIER:
                index += 2
            elif following == "<" and kind[index] == IDENTIFIER:
                closing = self.tokens.try_close_angle(index + 1)
                if closing is None or text[closing + 1] not in ("(", "::"):
                    return index
                index = closing
            else:
                return index
        return index

    def _find_half_names(self) -> None:
        """Other names of half and bfloat, as `typedef half storage_t;`."""
        text = self.tokens.text
        for index in range(len(text) - 4):
            if text[index] == "typedef" and text[index + 1] in self._half_names and text[index + 3] == ";":
                self._half_names.add(text[index + 2])
            elif (
                text[index] == "using"
                and text[index + 2] == "="
                and text[index + 3] in self._half_names
                and text[index + 4] == ";"
            ):
                self._half_names.add(text[index + 1])


def _as_decimal(text: str) -> str:
    return text if _DECIMAL.search(text) else text + ".0"


def _qualified(path: tuple[str, ...], name: str) -> str:
    """Named from the top: a kernel may be called as a function of namespace metal that the source is using."""
    return name if name.startswith("::") else "::" + "::".join((*path, name))


def _limit_name(kernel: Kernel) -> str:
    return f"mslc_max_threads_{kernel.number}"
