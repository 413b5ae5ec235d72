"""The questions for a first run on a Mac can be asked, and the stand-in answers all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "first_mac_run.py"


def test_every_question_is_answered(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(SCRIPT)], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    report = (tmp_path / "mpscffi-first-mac-run.txt").read_text(encoding="utf-8")
    assert report.count("\nok   ") == 28
    assert "LOOK" not in report
