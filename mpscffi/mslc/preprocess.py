"""Directives: what is left for the rewriter is plain text, of which it is known where each line came from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SOURCE_NAME = "program_source"
# The header of Metal's library that every source begins with.
PREDEFINED = "metal_config"
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w*)(.*)$", re.MULTILINE)
_HEADER = re.compile(r"\s*<([\w/.]+)>\s*(?://.*)?")
_LINE_MARKER = re.compile(r'^# (\d+) "((?:\\.|[^"\\])*)"')
_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")
_CONTRACT = re.compile(r"\s*METAL\s+fp\s+contract\s*\(\s*(on|off|fast)\s*\)")


class Text:
    """A source without directives.

    Attributes
    ----------
    text : str
    origins : list of (str, int)
        For each line, the file that it is from and its number there.
    headers : list of str
        Paths of the user's own headers that it includes.
    is_verbatim : bool
        Whether the lines are those of the source, letter by letter.
    has_library : bool
        Whether it includes any of Metal's headers.
    """

    def __init__(
        self,
        text: str,
        origins: list[tuple[str, int]],
        *,
        headers: Sequence[str] = (),
        is_verbatim: bool,
        has_library: bool,
    ) -> None:
        self.text = text
        self.origins = origins
        self.headers = list(headers)
        self.is_verbatim = is_verbatim
        self.has_library = has_library


def normalized(source: str) -> str:
    """Return the source with a line feed at the end of each line.

    Raises
    ------
    CompileError
        For characters that no source holds.
    """
    text = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    wrong = _NO_CHARACTER.search(text)
    if wrong is not None:
        line = text.count("\n", 0, wrong.start()) + 1
        what = "a NUL byte" if wrong.group() == "\0" else "half of a character (it is not UTF-8)"
        raise CompileError(f"{SOURCE_NAME}:{line}: error: the source has {what}\n")
    return text


def without_preprocessor(source: str, is_library: Callable[[str], bool]) -> Text | None:
    """Return a source that includes nothing but Metal's headers, its directives blanked; None for any other source.

    Most kernels that are written in a string are of this kind. Macros of Metal's library stay: clang expands them when
    it compiles.

    Parameters
    ----------
    source : str
    is_library : callable
        Tells of a name whether it is a header of Metal's library.
    """
    has_library = False
    for match in _DIRECTIVE.finditer(source):
        if match.group(1) == "pragma" and "once" not in match.group(2):
            continue
        header = _HEADER.fullmatch(match.group(2))
        if match.group(1) not in ("include", "import") or header is None or not is_library(header.group(1)):
            return None
        has_library = True
    if "\\\n" in source or "??" in source or "__LINE__" in source or "__FILE__" in source:
        return None
    count = source.count("\n") + 1
    origins = [(SOURCE_NAME, line) for line in range(1, count + 1)]
    return Text(_blanked(source), origins, is_verbatim=True, has_library=has_library)


def from_preprocessor(output: str, headers: Sequence[str], is_library: Callable[[str], bool]) -> Text:
    """Take what `clang -E` printed, without its markers and without the text of Metal's own headers.

    Parameters
    ----------
    output : str
    headers : sequence of str
        The user's headers.
    is_library : callable
        Tells of a path whether it is a header of Metal's library.
    """
    lines: list[str] = []
    origins: list[tuple[str, int]] = []
    file, number, is_hidden = SOURCE_NAME, 1, False
    hidden: dict[str, bool] = {}
    for line in output.split("\n"):
        marker = _LINE_MARKER.match(line) if line.startswith("#") else None
        if marker is not None:
            file = re.sub(r"\\(.)", r"\1", marker.group(2))
            number = int(marker.group(1))
            if file not in hidden:
                hidden[file] = is_library(file)
            is_hidden = hidden[file]
            continue
        if not is_hidden:
            lines.append(line)
            origins.append((file, number))
        number += 1
    library = [name for name, is_own in hidden.items() if is_own and not name.startswith("<")]
    return Text(
        _blanked("\n".join(lines)),
        origins or [(SOURCE_NAME, 1)],
        headers=headers,
        is_verbatim=False,
        has_library=any(not name.endswith(PREDEFINED) for name in library),
    )


def _blanked(text: str) -> str:
    """Return the text without directives. Whether a * b + c may be contracted is the one that clang is told of."""

    def replacement(match: re.Match[str]) -> str:
        contract = _CONTRACT.match(match.group(2)) if match.group(1) == "pragma" else None
        return f'_Pragma("clang fp contract({contract.group(1)})")' if contract else ""

    return _DIRECTIVE.sub(replacement, text)
