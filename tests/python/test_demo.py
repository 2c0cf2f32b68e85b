"""What the demo shows on its first screen."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples/demo.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    monkeypatch.setattr(module, "REPEATS", 1)
    monkeypatch.setattr(module, "PROMPTS", module.PROMPTS[:2])
    return module


def test_it_compares_the_modes(demo: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    demo.TRAINED = tmp_path / "none"
    demo.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "Checkpoint: v41-tiny-engram",
        "Its weights are random: the text means nothing. Tokens, rows and times are real.",
    ]
    assert len(lines) <= 40 and max(map(len, lines)) <= 100
    tables = [line.split(maxsplit=6) for line in lines if " ms" in line]
    assert [row[0] for row in tables] == ["off", "exact", "bounded"] * 2
    for off, exact, bounded in (tables[:3], tables[3:]):
        rows = [int(row[1]) for row in (off, exact, bounded)]
        assert rows[0] == int(off[3]) > rows[1] > rows[2] > 0
        assert exact[6] == "all 24 equal to off" and bounded[6].endswith("equal to off")
    # The second prompt's tokens differ under bounded, and both texts are shown.
    assert tables[5][6].startswith("the first ")
    assert any(line.startswith("  text, bounded:") for line in lines)


def test_it_takes_a_trained_checkpoint(demo: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    demo.TRAINED = tmp_path / "v41-trained"
    shutil.copytree(demo.RANDOM, demo.TRAINED)
    demo.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Checkpoint: v41-trained"
    assert "random" not in "\n".join(lines)


def test_it_counts_the_tokens_that_are_equal(demo: ModuleType) -> None:
    assert demo.compare([1, 2, 3], [1, 2, 3]) == "all 3 equal to off"
    assert demo.compare([1, 2, 4], [1, 2, 3]) == "the first 2 of 3 equal to off"
    assert demo.compare([9, 2, 3], [1, 2, 3]) == "the first 0 of 3 equal to off"
