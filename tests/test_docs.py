"""The examples and tables of the documentation are true."""

from __future__ import annotations

import codeop
import doctest
import re
from pathlib import Path

import pytest

import mpscffi
from mpscffi import config

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]


CACHING = pytest.mark.unvalidated("validated kernels are in no cache")
EXAMPLES = [pytest.param(page, marks=[CACHING] if page.name == "shaders.md" else []) for page in PAGES]


@pytest.mark.parametrize("page", EXAMPLES, ids=[page.name for page in PAGES])
def test_examples_give_what_they_show(page: Path, device: mpscffi.Device) -> None:
    del device
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    examples = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S))
    test = doctest.DocTestParser().get_doctest(examples, {}, page.name, str(page), 0)
    if page.name == "README.md":
        assert len(test.examples) > 20
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=flags).run(test, out=report.append)
    mpscffi.set_per_process_memory_fraction(1.7)
    assert not failed, "".join(report)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_can_be_pasted(page: Path) -> None:
    """Into a prompt, which takes a block for finished at an empty line alone."""
    for lines in re.findall(r"^>>> .*(?:\n\.\.\.(?: .*)?)*$", page.read_text(encoding="utf-8"), re.M):
        source = "\n".join(line[4:] for line in lines.split("\n"))
        assert codeop.compile_command(source) is not None, source


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_readme_has_two_setup_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    setup = text[text.index("<!-- setup -->") : text.index("<!-- /setup -->")]
    assert len(re.findall(r"^python3 .*$", setup, re.M)) == 2


def test_environment_page_lists_every_variable() -> None:
    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([A-Z_]+)`", page, re.M))
    sources = [
        *Path(config.__file__).parent.rglob("*.py"),
        *(ROOT / "shim").rglob("*.c"),
        *(ROOT / "shim").rglob("*.m"),
    ]
    used = set()
    for source in sources:
        # report.py prints whatever is set, by prefixes of names.
        if "tests" not in source.parts and source.name != "report.py":
            used |= set(
                re.findall(
                    r"\"((?:MPSCFFI|MPSSHIM|PYTORCH)_[A-Z_]+)\"", source.read_text(encoding="utf-8", errors="replace")
                )
            )
    assert used <= listed, used - listed
