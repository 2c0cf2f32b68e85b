"""Loading takes little memory beyond the weights: tensors go straight from the file to where they stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import reprise
from reprise.presets import PRESETS, write_checkpoint

# Prints what the process took at its peak, above what it held before loading, and what it should hold afterwards.
LOAD = """
import json, sys
from pathlib import Path
from reprise import LLM

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field + ":")).split()[1])

options = {"max_num_seqs": 1, "max_model_len": 128, "max_num_batched_tokens": 64, "num_threads": 1, "use_tqdm": False}
LLM(sys.argv[1], **options)  # what the process needs once: code, threads
before = status("VmRSS")
llm = LLM(sys.argv[2], **options)
stats = llm.stats()
caches = sum(group.bytes for group in stats.cache_groups)
print(json.dumps({"growth": status("VmHWM") - before, "weights": stats.weight_bytes, "caches": caches}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_loading_takes_little_more_than_the_weights(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 100m with a small vocabulary, as in a release, where no tensor is a large share of the whole.
    monkeypatch.setitem(PRESETS, "90mb", PRESETS["100m"] | {"vocab_size": 4000, "n_routed_experts": 4})
    folder = write_checkpoint("90mb", tmp_path)
    command = [sys.executable, "-c", LOAD, str(data_dir / "v41-tiny"), str(folder)]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(reprise.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    }
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=env)
    taken = json.loads(result.stdout)
    stored = (folder / "model.safetensors").stat().st_size
    assert 60e6 < stored < 100e6
    assert 0.95 * stored < taken["weights"] < 1.1 * stored  # bfloat16 in the file and in memory
    assert taken["caches"] < 2e6
    assert taken["growth"] < 1.2 * taken["weights"] + taken["caches"], taken
    assert taken["growth"] > 0.9 * taken["weights"], taken  # the weights are there at all
