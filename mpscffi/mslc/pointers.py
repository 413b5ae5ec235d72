"""Pointers and references that do not say which address space they point to: Metal takes none.

There is one address space here, so that clang would not miss the word. Told are types that are surely no expression,
no template parameter and no other name of a qualified type, wherever one is written: in parameters, variables, members,
results and casts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .kernels import ADDRESS_SPACES
from .tokens import IDENTIFIER, NUMBER

if TYPE_CHECKING:
    from .declarations import Attributes, Declarations
    from .refusals import Refusals
    from .tokens import Tokens

_SCALARS = r"bool|u?char|u?short|u?int|u?long|half|bfloat|float|size_t|ptrdiff_t|unsigned|signed|u?int(?:8|16|32|64)_t"
VALUE_TYPE = re.compile(rf"(?:packed_)?(?:{_SCALARS})(?:[234](?:x[234])?)?")
_LIBRARY_TYPE = re.compile(r"void|atomic_(?:bool|u?int|u?long|float)|simdgroup_(?:float|half|bfloat)8x8")
_LIBRARY_TEMPLATES = {"vec", "matrix", "array", "atomic", "simdgroup_matrix"}
_QUALIFIERS = {"const", "volatile", "restrict"}
_STORAGE = {"typedef", "static", "friend", "extern", "inline", "constexpr", "METAL_FUNC"}
_NO_SPECIFIERS = {"return", "else", "do", "case", "operator", "sizeof", "alignof"}


def unqualified(tokens: Tokens, attributes: Attributes, declarations: Declarations) -> Refusals:
    """Yield a message, and the token that it is about, for each such pointer or reference."""
    text, inside = tokens.text, attributes.inside
    names = _names(tokens, declarations)
    kernels = [item for item in declarations.functions if item.stage == "kernel"]
    for index, word in enumerate(text):
        if word not in ("*", "&") or index + 1 == len(text) or index == 0:
            continue
        last = index - 1
        while text[last] in _QUALIFIERS:
            last -= 1
        last = _template_name(tokens, last, names) if text[last] == ">" else last
        if not _is_value(text[last], names) and text[last] not in _LIBRARY_TEMPLATES:
            continue
        first = _first_specifier(tokens, attributes, last)
        behind = index + 1
        while behind < len(text) and (inside[behind] or text[behind] in _QUALIFIERS):
            behind += 1
        if first is None or not _declares(tokens, first, behind):
            continue
        if any(item.head <= index < item.opening for item in kernels):
            continue  # a kernel's result, which is refused as such
        what = "pointer" if word == "*" else "reference"
        is_buffer = any(item.opening < index < item.closing for item in kernels)
        space = "thread" if not is_buffer else "device" if word == "*" else "constant"
        while text[first] in _STORAGE:
            first += 1
        type_name = tokens.spelled([place for place in range(first, index + 1) if not inside[place]])
        yield f"{what} type must have an explicit address space, as in '{space} {type_name}'", first


def _names(tokens: Tokens, declarations: Declarations) -> set[str]:
    """Names that are of a class, or another name of a value's type, and nothing else anywhere in the source."""
    text = tokens.text
    names = {text[item.key + 1] for item in declarations.classes}
    for statement in declarations.statements:
        words = text[statement.start : statement.stop - 1]
        name, value = (words[1], words[3:]) if words[0] == "using" else (words[-1], words[1:-1])
        if (
            words[0] in ("using", "typedef")
            and value
            and all(word == "const" or _is_value(word, names) for word in value)
        ):
            names.add(name)
    others = {
        word
        for index, word in enumerate(text)
        if word in names
        and (
            (text[index + 1 : index + 2] in (["="], ["."], ["["], ["->"]) and text[index - 1] != "using")
            or (text[index - 1] in ("typename", "class") and text[index - 2] in ("<", ","))
        )
    }
    return names - others


def _is_value(word: str, names: set[str]) -> bool:
    return word in names or bool(VALUE_TYPE.fullmatch(word) or _LIBRARY_TYPE.fullmatch(word))


def _template_name(tokens: Tokens, closing: int, names: set[str]) -> int:
    """Return the name in front of template arguments, if that and they depend on nothing; else where they end."""
    opening = closing - 1
    while opening > 0 and (
        tokens.text[opening] == "," or tokens.kind[opening] == NUMBER or _is_value(tokens.text[opening], names)
    ):
        opening -= 1
    return opening - 1 if tokens.text[opening] == "<" and tokens.text[opening - 1] in _LIBRARY_TEMPLATES else closing


def _first_specifier(tokens: Tokens, attributes: Attributes, last: int) -> int | None:
    """Return where the words in front of a type begin; None if there is an address space, or no type at all."""
    text, kind, inside = tokens.text, tokens.kind, attributes.inside
    first = index = last
    while index >= 0:
        word = text[index]
        if word == ")" and text[tokens.partner[index] - 1] == "coherent":
            index = tokens.partner[index]
        elif word in ADDRESS_SPACES or word in _NO_SPECIFIERS:
            return None
        elif inside[index] or word == "::":
            pass
        elif kind[index] == IDENTIFIER:
            first = index
        else:
            break
        index -= 1
    return first


def _declares(tokens: Tokens, first: int, behind: int) -> bool:
    """Whether a type between two tokens declares something, or is what is cast to; not an argument of a template."""
    before = tokens.text[first - 1] if first else ";"
    if tokens.kind[behind] == IDENTIFIER:
        return before in (";", "{", "}", "(", ",", ":", ">", "]")
    return (before, tokens.text[behind]) in (("(", ")"), ("(", ","), (",", ")"))
