"""Where the tests find their data and the reference model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))  # `from reference.deepseek_v41 import ...`


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """tests/data: the golden checkpoints."""
    return TESTS / "data"
