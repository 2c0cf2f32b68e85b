"""Damaged checkpoints: whatever stands in the files, loading them works or is refused in words.

    python -m pytest -m slow tests/python/test_loader_fuzz.py -s
    REPRISE_FUZZ=200000 REPRISE_SEED=7 python -m pytest -m slow tests/python/test_loader_fuzz.py -s

Every checkpoint is loaded in a child process with a limit on memory and on time; a child that dies, hangs or shows
another error ends the test with the seed and the number of the mutation.
"""

from __future__ import annotations

import collections
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import reprise

CHILD = Path(__file__).with_name("loader_fuzz_child.py")
PER_CHILD = 250


def sweep(data_dir: Path, tmp_path: Path, count: int, seed: int) -> collections.Counter[str]:
    path = os.pathsep.join([str(Path(reprise.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path, "OMP_WAIT_POLICY": "passive", "RUST_BACKTRACE": "0"}
    counts: collections.Counter[str] = collections.Counter()
    for first in range(0, count, PER_CHILD):
        last = min(first + PER_CHILD, count)
        command = [sys.executable, str(CHILD), str(data_dir), str(tmp_path), str(seed), str(first), str(last)]
        result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=3600)
        lines = result.stdout.splitlines()
        assert result.returncode == 0, (
            f"seed {seed}: exit {result.returncode} after {lines[-1:]}\n{result.stderr[-3000:]}"
        )
        counts += collections.Counter(json.loads(lines[-1]))
    return counts


@pytest.mark.slow
def test_damaged_checkpoints_load_or_are_refused_in_words(data_dir: Path, tmp_path: Path) -> None:
    count = int(os.environ.get("REPRISE_FUZZ", "20000"))
    seed = int(os.environ.get("REPRISE_SEED", random.SystemRandom().randrange(2**31)))
    counts = sweep(data_dir, tmp_path, count, seed)
    print(f"\nloader fuzz: seed {seed}, {count} mutations: {dict(sorted(counts.items()))}")
    assert sum(counts.values()) == count


def test_a_few_damaged_checkpoints(data_dir: Path, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**31)
    counts = sweep(data_dir, tmp_path, 40, seed)
    assert sum(counts.values()) == 40, f"seed {seed}"
