"""The parameters of kernels: what each one stands for, and which slot it takes."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .numbers import integer_value
from .tokens import IDENTIFIER

if TYPE_CHECKING:
    from .declarations import Attribute, Attributes, Function
    from .tokens import Tokens

BUFFER_SLOTS = 31
_QUALIFIERS = {"const", "volatile", "restrict", "coherent"}
ADDRESS_SPACES = {
    "device",
    "thread",
    "threadgroup",
    "constant",
    "ray_data",
    "object_data",
    "threadgroup_imageblock",
}
# Built-in inputs of a kernel; each is a member of the prelude's enumeration of roles by the same name.
BUILTIN_INPUTS = {
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "thread_index_in_threadgroup",
    "threadgroup_position_in_grid",
    "threads_per_grid",
    "threadgroups_per_grid",
    "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "threads_per_simdgroup",
    "thread_execution_width",
    "thread_index_in_quadgroup",
    "quadgroup_index_in_threadgroup",
    "quadgroups_per_threadgroup",
    "dispatch_quadgroups_per_threadgroup",
    "grid_origin",
    "grid_size",
}
_SCALAR_INPUTS = {
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "threads_per_simdgroup",
    "thread_execution_width",
    "thread_index_in_quadgroup",
    "quadgroup_index_in_threadgroup",
    "quadgroups_per_threadgroup",
    "dispatch_quadgroups_per_threadgroup",
}
# Types whose name says at once that an input cannot be one of these.
_OTHER_TYPES = {
    base + lanes
    for base in ("bool", "char", "uchar", "int", "long", "ulong", "float", "half", "bfloat")
    for lanes in ("", "2", "3", "4")
} | {"uint4", "ushort4", "void", "signed"}
# The types of inputs that have a name of several words, which may stand in any order.
_LONG_NAMES = {
    frozenset({"unsigned", "int"}): ["uint"],
    frozenset({"unsigned", "short"}): ["ushort"],
    frozenset({"unsigned", "short", "int"}): ["ushort"],
}
_UNSUPPORTED_TYPES = (
    (re.compile(r"texture\w+"), "textures are"),
    (re.compile(r"depth(?:2d|cube)\w*"), "textures are"),
    (re.compile(r"sampler"), "samplers are"),
    (re.compile(r"(?:instance_|primitive_)?acceleration_structure|intersection_function_table"), "ray tracing is"),
    (re.compile(r"visible_function_table"), "function tables are"),
    (re.compile(r"imageblock"), "imageblocks are"),
    (re.compile(r"tensor"), "tensors are"),
    (re.compile(r"command_buffer|compute_command"), "indirect command buffers are"),
)
_UNSUPPORTED_ATTRIBUTES = {
    "texture": "textures are",
    "sampler": "samplers are",
    "stage_in": "attributes of a stage are",
    "payload": "mesh shaders are",
    "imageblock_data": "imageblocks are",
}


@dataclass(slots=True)
class Parameter:
    """One parameter of a kernel.

    `role` is the text of its role for the prelude, as "mslc::buffer, 0"; `type_name` the type of the value that it
    points to, as the source spells it.
    """

    name: str
    type_name: str
    role: str


@dataclass(slots=True)
class Kernel:
    """A kernel function, or the template of many.

    `work` is what its author says that a thread does, in threads of a kernel without loops; 0 if nothing was said.
    """

    function: Function
    number: int
    parameters: list[Parameter]
    max_threads: list[int] = field(default_factory=list)
    work: int = 0


class ParameterError(Exception):
    """A kernel's parameter that cannot be: the text, and the token that it is about."""

    def __init__(self, message: str, token: int) -> None:
        super().__init__(message)
        self.token = token


def split_list(tokens: Tokens, start: int, stop: int) -> list[list[int]]:
    """Return the tokens [start, stop), split at the commas that stand in no bracket."""
    parts: list[list[int]] = []
    current: list[int] = []
    index = start
    while index < stop:
        text = tokens.text[index]
        if text == ",":
            parts.append(current)
            current = []
        elif text in ("(", "[", "{"):
            current += range(index, tokens.partner[index] + 1)
            index = tokens.partner[index]
        elif text == "<" and (closing := tokens.try_close_angle(index)) is not None and closing < stop:
            current += range(index, closing + 1)
            index = closing
        else:
            current.append(index)
        index += 1
    if current or parts:
        parts.append(current)
    return parts


def declared_name(tokens: Tokens, indices: list[int]) -> int | None:
    """Return the token that names a parameter or variable, out of its plain tokens; None if it has no name."""
    depth = 0
    names: list[int] = []
    for index in indices:
        text = tokens.text[index]
        depth += (text == "[") - (text == "]")
        if text == "=" and depth == 0:
            break
        if depth == 0 and tokens.kind[index] == IDENTIFIER and text not in ADDRESS_SPACES | _QUALIFIERS:
            names.append(index)
    if len(names) < 2 or tokens.text[names[-1] - 1] == "::":
        return None
    is_type = any(index > names[-1] and tokens.text[index] in (">", "*", "&", "::") for index in indices)
    return None if is_type else names[-1]


class ParameterReader:
    """Reads the parameters of one kernel.

    Parameters
    ----------
    tokens : Tokens
    attributes : Attributes
    function : Function
        The kernel.
    """

    def __init__(self, tokens: Tokens, attributes: Attributes, function: Function) -> None:
        self.tokens = tokens
        self.attributes = attributes
        self.function = function
        self._buffers: set[int] = set()
        self._threadgroups: set[int] = set()

    def read(self) -> list[Parameter]:
        """All parameters, numbered where they have no number of their own.

        Raises
        ------
        ParameterError
        """
        lists = [
            part
            for part in split_list(self.tokens, self.function.opening + 1, self.function.closing)
            if self._plain(part) and self._texts(part) != ["void"]
        ]
        parameters = [self._explicit(part) for part in lists]
        for part, parameter in zip(lists, parameters, strict=True):
            if not parameter.role:
                parameter.role = self._automatic(part)
        return parameters

    def _plain(self, part: list[int]) -> list[int]:
        return [index for index in part if not self.attributes.inside[index]]

    def _texts(self, part: list[int]) -> list[str]:
        return [self.tokens.text[index] for index in self._plain(part)]

    def _explicit(self, part: list[int]) -> Parameter:
        """Return a parameter with the role that its attributes give it; none yet if they give none."""
        plain = self._plain(part)
        texts = self._texts(part)
        name_token = declared_name(self.tokens, plain)
        name = self.tokens.text[name_token] if name_token is not None else ""
        parameter = Parameter(name, self._type_name(plain, name_token), "")
        attributes = self.attributes.within(part[0], part[-1] + 1)
        self._refuse_unsupported(plain, name_token, attributes)
        is_optional = next((item for item in attributes if item.name == "function_constant"), None)
        for attribute in attributes:
            if attribute.name in BUILTIN_INPUTS:
                self._check_input(plain, attribute, name_token)
                parameter.role = f"mslc::{attribute.name}"
            elif attribute.name == "buffer":
                parameter.role = self._buffer(attribute, texts, is_optional)
            elif attribute.name == "threadgroup":
                parameter.role = f"mslc::threadgroup_buffer, {self._slot(attribute, self._threadgroups, False)}"
            elif attribute.name not in ("function_constant", "user", "maybe_unused"):
                raise ParameterError(_unknown_attribute(attribute.name, name), attribute.start)
        return parameter

    def _type_name(self, plain: list[int], name_token: int | None) -> str:
        """Return the type of the value pointed to, as the source spells it."""
        kept: list[int] = []
        depth = 0
        for index in plain:
            text = self.tokens.text[index]
            if index == name_token or (depth == 0 and text == "["):
                break
            depth += (text == "<") - (text == ">")
            if depth == 0 and (text in ADDRESS_SPACES or text in _QUALIFIERS or text in ("*", "&", "(", ")")):
                continue
            kept.append(index)
        return self.tokens.spelled(kept)

    def _refuse_unsupported(self, plain: list[int], name_token: int | None, attributes: list[Attribute]) -> None:
        name = self.tokens.text[name_token] if name_token is not None else ""
        for index in plain:
            text = self.tokens.text[index]
            what = next((what for pattern, what in _UNSUPPORTED_TYPES if pattern.fullmatch(text)), None)
            if what is not None and index != name_token:
                raise ParameterError(
                    f"parameter '{name}' of type '{text}': {what} not supported on the host device", index
                )
        for attribute in attributes:
            if attribute.name in _UNSUPPORTED_ATTRIBUTES:
                what = _UNSUPPORTED_ATTRIBUTES[attribute.name]
                raise ParameterError(
                    f"parameter '{name}' with [[{attribute.name}]]: {what} not supported on the host device",
                    attribute.start,
                )

    def _check_input(self, plain: list[int], attribute: Attribute, name_token: int | None) -> None:
        types = [self.tokens.text[index] for index in plain if index != name_token]
        if "unsigned" in types:
            types = _LONG_NAMES.get(frozenset(types) - _QUALIFIERS, types)
        wrong = next((text for text in types if text in _OTHER_TYPES or text in ("*", "&")), None)
        if wrong is None and attribute.name in _SCALAR_INPUTS:
            wrong = next((text for text in types if text in ("uint2", "uint3", "ushort2", "ushort3")), None)
        if wrong is not None:
            allowed = "ushort or uint" if attribute.name in _SCALAR_INPUTS else "ushort or uint, or a vector of 2 or 3"
            raise ParameterError(
                f"type '{self.tokens.spelled([index for index in plain if index != name_token])}' is not valid for "
                f"attribute '{attribute.name}': it takes {allowed}",
                attribute.start,
            )

    def _slot(self, attribute: Attribute, taken: set[int], is_optional: bool) -> str:
        """Return the text of an attribute's number, which is taken from now on if it is known before C++ reads it."""
        text = self.tokens.spelled(attribute.arguments) or "0"
        value = integer_value(text)
        if value is None:
            return f"({text})"
        if not 0 <= value < BUFFER_SLOTS:
            raise ParameterError(
                f"'{attribute.name}' attribute parameter is out of bounds: {value}, "
                f"must be between 0 and {BUFFER_SLOTS - 1}",
                attribute.start,
            )
        if value in taken and not is_optional:
            raise ParameterError(f"{attribute.name} index {value} is taken by another parameter", attribute.start)
        taken.add(value)
        return str(value)

    def _buffer(self, attribute: Attribute, texts: list[str], optional: Attribute | None) -> str:
        slot = self._slot(attribute, self._buffers, optional is not None)
        kind = _buffer_kind(texts)
        if optional is not None:
            kind = f"({self.tokens.spelled(optional.arguments)}) ? {kind} : mslc::absent"
        return f"{kind}, {slot}"

    def _automatic(self, part: list[int]) -> str:
        """Return the role of a parameter without a telling attribute: the next free slot."""
        texts = self._texts(part)
        if not any(text in ("*", "&", "[") for text in texts):
            raise ParameterError(
                f"parameter '{self.tokens.spelled(self._plain(part))}' of kernel '{self.function.name}' needs an "
                "attribute, as [[thread_position_in_grid]], or must be a pointer or reference to a buffer",
                part[0],
            )
        if "threadgroup" in texts and "device" not in texts and "constant" not in texts:
            slot = next(number for number in range(BUFFER_SLOTS + 1) if number not in self._threadgroups)
            self._threadgroups.add(slot)
            return f"mslc::threadgroup_buffer, {slot}"
        slot = next(number for number in range(BUFFER_SLOTS + 1) if number not in self._buffers)
        if slot == BUFFER_SLOTS:
            raise ParameterError(f"kernel '{self.function.name}' takes more than {BUFFER_SLOTS} buffers", part[0])
        self._buffers.add(slot)
        return f"{_buffer_kind(texts)}, {slot}"


def _unknown_attribute(attribute: str, parameter: str) -> str:
    text = f"attribute '{attribute}' of parameter '{parameter}'"
    near = difflib.get_close_matches(attribute, [*BUILTIN_INPUTS, "buffer", "threadgroup", "function_constant"], 1, 0.8)
    return f"{text} is unknown; did you mean '{near[0]}'?" if near else f"{text} is not supported on the host device"


def _buffer_kind(texts: list[str]) -> str:
    is_constant_reference = "constant" in texts and "&" in texts and "*" not in texts
    return "mslc::constant_reference" if is_constant_reference else "mslc::buffer"
