"""Kernel templates by the text of a source: which there are, and instantiations that are asked for by name."""

from __future__ import annotations

import re

__all__ = ["idle_templates", "instantiated", "kernel_templates", "template_head"]

_INSTANTIATION = re.compile(r"\s*([A-Za-z_]\w*(?:::\w+)*)\s*<([^;{}\"'\\\n]*)>\s*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TEMPLATE = re.compile(
    r"\btemplate\s*<[^;{}]*>\s*(?:\[\[[^\]]*\]\]\s*)*(?:\[\[\s*kernel\s*\]\]|\bkernel)\s+void\s+(\w+)\s*\("
)


def kernel_templates(source: str) -> list[str]:
    """Return the names of the kernel templates that a source defines, in order."""
    return list(dict.fromkeys(_TEMPLATE.findall(_COMMENT.sub(" ", source))))


def template_head(source: str, name: str) -> str:
    """Return the `template <...>` of a kernel template; "" if it is not found."""
    heads = re.findall(
        rf"\b(template\s*<[^;{{}}()]*>)[^;{{}}()]*\bvoid\s+{re.escape(name)}\s*\(", _COMMENT.sub(" ", source)
    )
    return re.sub(r"\s*(?:\[\[.*|\bkernel\b.*)", "", " ".join(heads[0].split())) if len(set(heads)) == 1 else ""


def idle_templates(source: str) -> list[str]:
    """Return the names of kernel templates that nothing else in the source names: there is no kernel of them."""
    text = _COMMENT.sub(" ", source)
    return [name for name in kernel_templates(source) if len(re.findall(rf"\b{name}\b", text)) == 1]


def instantiated(source: str, name: str) -> tuple[str, str] | None:
    """Return a source with one more explicit instantiation.

    Parameters
    ----------
    source : str
    name : str
        As "scale<float, 4>".

    Returns
    -------
    tuple of str, or None
        The text, in which all lines keep their numbers, and the kernel's name there. None if the name is none of an
        instantiation, or the source has nothing of that name.
    """
    template = _INSTANTIATION.fullmatch(name)
    if template is None or template[1].split("::")[-1] not in source:
        return None
    call = f"{template[1]}<{template[2].strip()}>"
    return f'{source}\ntemplate [[host_name("{call}")]] [[kernel]] decltype({call}) {call};\n', call
