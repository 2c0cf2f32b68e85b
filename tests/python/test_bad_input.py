"""Bad input is refused with what was wanted and what came; the engine and the other requests go on unharmed."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from reprise import LLM, Request, SamplingParams
from reprise import _reprise as binding

DATA = Path(__file__).resolve().parent.parent / "data"
GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


def golden(i: int) -> tuple[list[int], list[int]]:
    """Prompt and the first six greedy tokens of v41-tiny under bounded replay."""
    values = load_file(DATA / "v41-tiny" / "expected.safetensors")
    return values[f"{i}.prompt"].tolist(), values[f"{i}.bounded.tokens"].tolist()[:6]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(DATA / "v41-tiny", max_model_len=100, num_threads=1, poison_cache=True, use_tqdm=False)


@pytest.fixture(autouse=True)
def check_engine_is_as_before(llm: LLM) -> Any:
    """After every test: nothing is left of the refused request, and the engine still says what it should."""
    yield
    assert not llm.engine.has_unfinished()
    stats = llm.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert all(group.free_pages == group.num_pages for group in stats.cache_groups)
    prompt, tokens = golden(5)
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].token_ids == tokens


BAD_PROMPTS = {
    "empty": ([], "at least 1 token"),
    "negative id": ([5, -1], "-1"),
    "id beyond the vocabulary": ([5, 288], "288"),
    "id beyond int32": ([2**31], str(2**31)),
    "id beyond int64": ([2**70], str(2**70)),
    "fraction": ([1.5], "1.5"),
    "numpy fractions": (np.array([1.0, 2.0]), "1.0"),
    "truth value": ([True], "True"),
    "text among ids": ([1, "2"], "'2'"),
    "nothing": (None, "None"),
    "bytes": (b"ab", "b'ab'"),
    "text without a tokenizer": ("hello", "without a tokenizer"),
    "dict of something else": ({"tokens": [1]}, "'prompt_token_ids'"),
    "longer than the engine takes": ([7] * 100, "100"),
    "with its continuation longer": ([7] * 95, "100"),
}


@pytest.mark.parametrize(("prompt", "message"), BAD_PROMPTS.values(), ids=BAD_PROMPTS)
def test_a_bad_prompt_in_a_batch_is_named_and_nothing_is_submitted(llm: LLM, prompt: Any, message: str) -> None:
    steps = llm.stats().steps
    with pytest.raises(ValueError, match="prompt 1: ") as error:
        llm.generate([golden(0)[0], prompt, golden(1)[0]], GREEDY, use_tqdm=False)
    assert message in str(error.value)
    assert llm.stats().steps <= steps + 1  # at most the one that collects what had been submitted before it
    assert llm.stats().generated_tokens % 6 == 0, "a refused batch has generated nothing"


def test_bad_prompts_alone(llm: LLM) -> None:
    for prompts in ("hello", [[]], [[-1]], {"prompt": "hello"}, 5, None, [None], b"ab"):
        with pytest.raises(ValueError, match="wanted"):
            llm.generate(prompts, GREEDY, use_tqdm=False)


def test_a_prompt_that_just_fits(llm: LLM) -> None:
    output = llm.generate([[7] * 94], GREEDY, use_tqdm=False)[0]
    assert len(output.outputs[0].token_ids) == 6
    assert llm.generate([[7] * 100], SamplingParams(max_tokens=0), use_tqdm=False)[0].finished


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -1.0),
        ("temperature", math.inf),
        ("top_p", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.0001),
        ("top_k", -2),
        ("min_p", math.nan),
        ("min_p", 2.0),
        ("max_tokens", -1),
        ("logprobs", -2),
        ("logprobs", 289),
        ("prompt_logprobs", -2),
        ("prompt_logprobs", 289),
        ("stop_token_ids", [288]),
        ("stop_token_ids", [-1]),
    ],
)
def test_a_bad_sampling_value_is_named(llm: LLM, field: str, value: object) -> None:
    good_id = llm.engine.submit(Request(golden(0)[0], GREEDY.to_engine(0)))

    params = binding.SamplingParams(max_tokens=2)
    setattr(params, field, value)
    with pytest.raises(ValueError, match=field):
        llm.engine.submit(Request([1, 2, 3], params))

    tokens: list[int] = []
    while llm.engine.has_unfinished():
        for output in llm.engine.step():
            tokens += output.new_token_ids if output.id == good_id else []
    assert tokens == golden(0)[1]

    changed = SamplingParams(max_tokens=2)
    setattr(changed, field, value)
    with pytest.raises(ValueError, match=f"prompt 1: .*{field}"):
        llm.generate([[1], [2]], [GREEDY, changed], use_tqdm=False)


def test_params_must_match_the_prompts(llm: LLM) -> None:
    with pytest.raises(ValueError, match="per prompt \\(3\\) but got 2"):
        llm.generate([[1], [2], [3]], [GREEDY, GREEDY], use_tqdm=False)
    with pytest.raises(ValueError, match="prompt 1: wanted SamplingParams"):
        llm.generate([[1], [2]], [GREEDY, {"max_tokens": 1}], use_tqdm=False)
    with pytest.raises(ValueError, match="prompt 0: wanted a tokenizer for stop strings"):
        llm.generate([1], SamplingParams(stop="x"), use_tqdm=False)


def test_a_timeout_must_be_a_time(llm: LLM) -> None:
    for timeout_s in (-1.0, math.nan):
        with pytest.raises(ValueError, match="timeout_s"):
            llm.generate([1], SamplingParams(timeout_s=timeout_s), use_tqdm=False)


def test_low_level_request_refuses_what_is_no_token() -> None:
    for prompt in ([1.5], ["5"], "abc", [2**40], 3):
        with pytest.raises(ValueError, match="wanted"):
            Request(prompt)
    assert Request(np.array([1, 2])).prompt_token_ids == [1, 2]


def test_abort_of_a_request_that_is_not_there(llm: LLM) -> None:
    assert not llm.engine.abort(10**9)
    assert not llm.engine.abort(-1)


def test_a_prompt_that_the_caches_can_never_hold() -> None:
    options = {"kv_cache_memory": 200_000, "max_num_seqs": 1, "max_num_batched_tokens": 64, "page_size": 8}
    small = LLM(DATA / "v41-tiny", **options, use_tqdm=False)
    room = small.stats().max_model_len
    assert 0 < room < 4096, "the test wants caches smaller than the model's longest prompt"
    with pytest.raises(ValueError, match=f"prompt 0: .*{room}"):
        small.generate([[7] * room], GREEDY, use_tqdm=False)
    assert len(small.generate([[7] * (room - 6)], GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 6


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("dtype", "float8"),
        ("device", "cuda"),
        ("replay", "sometimes"),
        ("kv_cache_dtype", "int8"),
        ("prefix_rebuild", "never"),
        ("max_num_seqs", 0),
        ("max_num_seqs", "many"),
        ("max_num_batched_tokens", 0),
        ("max_model_len", -1),
        ("max_model_len", 5000),  # beyond max_position_embeddings
        ("page_size", 0),
        ("page_size", 3),  # no multiple of the compress ratio 2
        ("kv_cache_memory", -1),
        ("kv_cache_memory", 1),
        ("num_threads", -1),
        ("graph_buckets", [4, 2]),
    ],
)
def test_a_bad_engine_option_is_named(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        LLM(DATA / "v41-tiny", use_tqdm=False, **{option: value})


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [("graph_buckets", "8", "list"), ("num_threads", 1.5, "int"), ("on_load_progress", 3, "function")],
)
def test_a_wrong_type_is_named(option: str, value: object, wanted: str) -> None:
    with pytest.raises(ValueError, match=f"wanted {option} to be of type {wanted} but got {value!r}"):
        LLM(DATA / "v41-tiny", use_tqdm=False, **{option: value})


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="max_num_sequences"):
        LLM(DATA / "v41-tiny", max_num_sequences=4)


# Checkpoints


def copy_checkpoint(name: str, folder: Path) -> Path:
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        if (DATA / name / file).exists():
            shutil.copy(DATA / name / file, folder / file)
    return folder


def change_config(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config["text_config"] if "text_config" in config else config)
    (folder / "config.json").write_text(json.dumps(config))


def load_error(folder: Path) -> str:
    with pytest.raises(ValueError) as error:
        LLM(folder, max_model_len=64, use_tqdm=False)
    return str(error.value)


def test_a_copy_that_is_not_harmed_loads(tmp_path: Path) -> None:
    LLM(copy_checkpoint("v41-tiny", tmp_path), max_model_len=64, use_tqdm=False)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in load_error(tmp_path / "nowhere")
    assert "config.json" in load_error(tmp_path)
    folder = copy_checkpoint("v41-tiny", tmp_path)
    (folder / "model.safetensors").unlink()
    assert "safetensors" in load_error(folder)


def test_config_that_is_no_json(tmp_path: Path) -> None:
    folder = copy_checkpoint("v41-tiny", tmp_path)
    (folder / "config.json").write_text('{"model_type": ')
    assert "config.json" in load_error(folder)


def test_an_unknown_model_type_is_named(tmp_path: Path) -> None:
    folder = copy_checkpoint("v41-tiny", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "llama"
    if "text_config" in config:
        config["text_config"]["model_type"] = "llama"
    (folder / "config.json").write_text(json.dumps(config))
    assert "llama" in load_error(folder)


def test_every_inconsistent_field_is_named(tmp_path: Path) -> None:
    folder = copy_checkpoint("v41-tiny", tmp_path)

    def change(config: dict[str, Any]) -> None:
        del config["vocab_size"]
        config["compress_ratios"] = config["compress_ratios"][:-1]
        config["sliding_window"] = -8

    change_config(folder, change)
    message = load_error(folder)
    for field in ("vocab_size", "compress_ratios", "sliding_window"):
        assert field in message


def test_every_wrong_tensor_is_named(tmp_path: Path) -> None:
    folder = copy_checkpoint("v41-tiny", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    missing, misshaped = sorted(tensors)[3], sorted(tensors)[10]
    del tensors[missing]
    tensors[misshaped] = tensors[misshaped].flatten()[:-1].clone()
    tensors["layers.0.stranger.weight"] = torch.zeros(2)
    save_file(tensors, folder / "model.safetensors")
    message = load_error(folder)
    for name in (missing, misshaped, "layers.0.stranger.weight"):
        assert name in message


def test_truncated_and_lying_files(tmp_path: Path) -> None:
    folder = copy_checkpoint("v41-tiny", tmp_path)
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    header_length = int.from_bytes(whole[:8], "little")
    header = whole[8 : 8 + header_length]
    harmed = {
        "empty": b"",
        "half a length": whole[:4],
        "half a header": whole[: 8 + header_length // 2],
        "half the data": whole[: len(whole) // 2],
        "a byte too few": whole[:-1],
        "a byte too many": whole + b"\0",
        "a header beyond the file": (2**62).to_bytes(8, "little") + whole[8:],
        "no JSON": whole[:8] + b"x" * header_length + whole[8 + header_length :],
        "an unknown dtype": whole.replace(b'"F32"', b'"F33"', 1),
        "offsets that do not fit the shape": whole[:8] + header.replace(b"[0,", b"[4,", 1) + whole[8 + header_length :],
    }
    for what, content in harmed.items():
        assert content != whole, what
        file.write_bytes(content)
        assert "model.safetensors" in load_error(folder), what


def test_engram_without_its_tokenizer(tmp_path: Path) -> None:
    folder = copy_checkpoint("v41-tiny-engram", tmp_path)
    (folder / "tokenizer.json").unlink()
    assert "tokenizer" in load_error(folder)


def test_engram_with_a_tokenizer_of_another_size(tmp_path: Path) -> None:
    folder = copy_checkpoint("v41-tiny-engram", tmp_path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    dropped = max(vocabulary, key=vocabulary.get)
    del vocabulary[dropped]
    tokenizer["model"]["merges"] = [
        m for m in tokenizer["model"]["merges"] if "".join(m if isinstance(m, list) else m.split()) != dropped
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "vocab" in load_error(folder)


def test_engram_with_another_compressed_size(tmp_path: Path) -> None:
    folder = copy_checkpoint("v41-tiny-engram", tmp_path)
    change_config(folder, lambda config: config.update(engram_compressed_vocab_size=241))
    message = load_error(folder)
    assert "engram_compressed_vocab_size" in message and "241" in message and "242" in message


def test_a_tokenizer_that_cannot_be_read(tmp_path: Path) -> None:
    folder = copy_checkpoint("v41-tiny-engram", tmp_path)
    (folder / "tokenizer.json").write_text("{")
    assert "tokenizer.json" in load_error(folder)
    with pytest.raises(ValueError, match="nowhere"):
        LLM(DATA / "v41-tiny", tokenizer=tmp_path / "nowhere", use_tqdm=False)
