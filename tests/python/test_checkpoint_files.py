"""Files of a checkpoint that are not what they should be, as a user of LLM sees them: named; nothing hangs or dies."""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import reprise
from reprise import LLM, SamplingParams

OPTIONS = {"max_model_len": 64, "num_threads": 1, "use_tqdm": False}


@pytest.fixture
def folder(data_dir: Path, tmp_path: Path) -> Path:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((data_dir / "v41-tiny" / name).read_bytes())
    return tmp_path


def load_error(folder: str | bytes | Path) -> str:
    with pytest.raises((ValueError, RuntimeError)) as error:
        LLM(folder, **OPTIONS)
    return str(error.value)


def edit_text_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config["text_config"])
    (folder / "config.json").write_text(json.dumps(config))


def in_child(code: str, *arguments: object, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a child whose address space is `limit` bytes at most."""
    path = os.pathsep.join([str(Path(reprise.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": path},
        preexec_fn=None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )


def rotary_groups(text: dict[str, Any]) -> None:
    """Rewrites flat rotary parameters as groups, as transformers 5 writes them."""
    yarn = text["rope_parameters"] | {"rope_theta": text["compress_rope_theta"], "attention_factor": 1.0}
    both = {"partial_rotary_factor": text["qk_rope_head_dim"] / text["head_dim"]}
    main = {"rope_type": "default", "rope_theta": text["rope_theta"]}
    text["rope_parameters"] = {"main": main | both, "compress": yarn | both}


def test_rotary_groups_give_the_golden_tokens(folder: Path, data_dir: Path) -> None:
    edit_text_config(folder, rotary_groups)
    llm = LLM(folder, num_threads=1, use_tqdm=False)
    values = load_file(data_dir / "v41-tiny" / "expected.safetensors")
    prompts = sorted({name.split(".")[0] for name in values})
    longest = max(prompts, key=lambda i: len(values[f"{i}.prompt"]))
    tokens = values[f"{longest}.full.tokens"].tolist()
    params = SamplingParams(max_tokens=len(tokens), temperature=0, ignore_eos=True, logprobs=-1, replay="off")
    output = llm.generate([values[f"{longest}.prompt"].tolist()], params, use_tqdm=False)[0].outputs[0]
    assert output.token_ids == tokens
    want = values[f"{longest}.full.logits"].log_softmax(-1).numpy()
    got = np.array([[row[i].logprob for i in range(want.shape[1])] for row in output.logprobs])
    assert np.abs(got - want).max() < 1e-3  # without YaRN it is off by far more


def test_without_yarn_the_golden_values_are_missed(folder: Path, data_dir: Path) -> None:
    """The test above can fail."""
    edit_text_config(folder, rotary_groups)
    edit_text_config(folder, lambda text: text["rope_parameters"]["compress"].update(rope_type="default"))
    llm = LLM(folder, num_threads=1, use_tqdm=False)
    values = load_file(data_dir / "v41-tiny" / "expected.safetensors")
    longest = max({name.split(".")[0] for name in values}, key=lambda i: len(values[f"{i}.prompt"]))
    params = SamplingParams(max_tokens=1, temperature=0, logprobs=-1, replay="off")
    row = llm.generate([values[f"{longest}.prompt"].tolist()], params, use_tqdm=False)[0].outputs[0].logprobs[0]
    want = values[f"{longest}.full.logits"].log_softmax(-1).numpy()[0]
    assert max(abs(row[i].logprob - want[i]) for i in range(len(want))) > 1e-2


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_named(folder: Path, value: float) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["layers.3.ffn.gate.bias"][2] = value
    save_file(tensors, folder / "model.safetensors")
    assert f"layers.3.ffn.gate.bias: wanted finite values but element 2 is {value}" in load_error(folder)


def test_a_file_cut_short_while_it_loads(folder: Path) -> None:
    code = """
import os, sys
import reprise
config = reprise.EngineConfig(num_threads=1)
file = sys.argv[1] + "/model.safetensors"
config.on_load_progress = lambda done, total: os.truncate(file, 200_000)
try:
    reprise.Engine.load(sys.argv[1], config)
except RuntimeError as error:
    print(error)
"""
    result = in_child(code, folder)
    assert result.returncode == 0, result.stderr
    assert f"[{folder}/model.safetensors] wanted" in result.stdout and "cut short while it was read" in result.stdout


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "generation_config.json"])
def test_what_is_no_regular_file_is_named(folder: Path, name: str) -> None:
    file = folder / name
    places: dict[str, Callable[[], object]] = {
        "got a pipe": lambda: os.mkfifo(file),
        "got a folder": file.mkdir,
        "got a device": lambda: file.symlink_to("/dev/zero"),
        "back to itself": lambda: file.symlink_to(name),
        "a link to nothing (elsewhere)": lambda: file.symlink_to("elsewhere"),
        "a Git LFS pointer": lambda: file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    }
    for said, make in places.items():
        file.unlink(missing_ok=True)
        make()
        message = load_error(folder)
        assert said in message and str(file) in message, (said, message)
        if file.is_dir() and not file.is_symlink():
            file.rmdir()


def test_names_that_are_too_long_or_no_folders(folder: Path) -> None:
    assert "wanted a checkpoint folder" in load_error(folder / ("n" * 300))
    (folder / "loop").symlink_to("loop")
    assert "wanted a checkpoint folder" in load_error(folder / "loop")
    assert "which is not a folder" in load_error(folder / "config.json")


def test_bytes_that_are_no_text_are_escaped(folder: Path) -> None:
    config = (folder / "config.json").read_bytes()
    (folder / "config.json").write_bytes(config.replace(b'"hidden_act": "silu"', b'"hidden_act": "\xff\xe9"'))
    message = load_error(folder)
    assert f"[{folder}/config.json] wanted valid JSON" in message and "\\xff" in message
    (folder / "config.json").write_bytes(config)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights.replace(b'"embed.weight"', b'"embed.w\xe9ight"', 1))
    message = load_error(folder)
    assert "model.safetensors: header] wanted valid JSON" in message and "\\xe9" in message


def test_a_folder_whose_name_is_no_text(folder: Path) -> None:
    odd = os.fsencode(folder) + b"/caf\xe9"
    os.mkdir(odd)
    assert "caf\\xe9" in load_error(odd)
    for name in (b"config.json", b"model.safetensors"):
        os.rename(os.fsencode(folder) + b"/" + name, odd + b"/" + name)
    for path in (odd, os.fsdecode(odd), Path(os.fsdecode(odd))):
        assert LLM(path, **OPTIONS).generate([[1, 2]], SamplingParams(max_tokens=1), use_tqdm=False)[0].finished


def test_unknown_fields_are_said_and_do_not_stop_the_load(folder: Path) -> None:
    edit_text_config(folder, lambda text: text.update(attn_gate=True))
    assert LLM(folder, **OPTIONS).stats().load_notice == "config.json holds unknown fields: attn_gate"


CACHES = """
import json, sys
import reprise
config = reprise.EngineConfig(num_threads=1, max_num_seqs=65536, **json.loads(sys.argv[2]))
try:
    stats = reprise.Engine.load(sys.argv[1], config).stats()
    print(sum(group.bytes for group in stats.cache_groups))
except ValueError as error:
    print(error)
"""


def test_caches_keep_below_the_limit_of_the_address_space(folder: Path) -> None:
    least = in_child("import reprise\nprint(open('/proc/self/statm').read().split()[0])").stdout
    used = int(least) * os.sysconf("SC_PAGESIZE")
    limit = used + 700 * 2**20
    result = in_child(CACHES, folder, "{}", limit=limit)
    assert result.returncode == 0, result.stderr
    assert 2**20 < int(result.stdout) < 350 * 2**20
    result = in_child(CACHES, folder, json.dumps({"kv_cache_memory": 2**40}), limit=limit)
    assert "[kv_cache_memory] wanted caches within the " in result.stdout, result.stdout + result.stderr
