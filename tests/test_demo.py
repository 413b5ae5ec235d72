"""The demo is what the documentation shows first."""

from __future__ import annotations

import re
from typing import Any

import pytest

import mpscffi
from mpscffi import demo

pytestmark = pytest.mark.usefixtures("device")


def test_the_demo_is_right(capsys: Any) -> None:
    assert demo.main() == 0
    output = capsys.readouterr().out
    assert mpscffi.get_name() in output
    assert len(re.findall(r"(?m)^\w+ +\d+ .* ms .* ms  right, largest error", output)) == 6
    assert "6 kernels compiled, 6 of 6 results right" in output


def test_the_demo_tells_of_a_wrong_result(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SOURCE", demo.SOURCE.replace("a * x[i] + y[i]", "a * x[i] - y[i]"))
    assert demo.main() == 1
    assert re.search(r"saxpy .* WRONG", capsys.readouterr().out)
