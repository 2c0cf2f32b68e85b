"""The command line: what it prints, and one clear line for a mistake."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from safetensors.torch import load_file

import reprise
from reprise.cli import main

TESTS = Path(__file__).resolve().parent.parent
ENGRAM = TESTS / "data" / "v41-tiny-engram"
SMALL = ["--max-model-len", "128"]


def golden(checkpoint: Path = ENGRAM) -> tuple[list[int], dict[str, list[int]]]:
    values = load_file(checkpoint / "expected.safetensors")
    return values["5.prompt"].tolist(), {mode: values[f"5.{mode}.tokens"].tolist() for mode in ("full", "bounded")}


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main([str(argument) for argument in argv]) == 0
    return capsys.readouterr().out


def test_generate_prints_text(capsys: pytest.CaptureFixture[str]) -> None:
    prompt, tokens = golden()
    oracle = tokenizers.Tokenizer.from_file(str(ENGRAM / "tokenizer.json"))
    ids = ",".join(map(str, prompt))
    options = ["--prompt-ids", ids, "--max-tokens", 12, "--temperature", 0, "--ignore-eos", *SMALL]
    for replay, mode in (("off", "full"), ("exact", "full"), ("bounded", "bounded")):
        out = run(capsys, "generate", ENGRAM, "--replay", replay, *options)
        assert out == oracle.decode(tokens[mode]) + "\n"


def test_generate_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    prompt, tokens = golden()
    ids = ",".join(map(str, prompt))
    options = ["--max-tokens", 12, "--temperature", 0, "--ignore-eos", "--logprobs", 1, "--json", *SMALL]
    outputs = json.loads(run(capsys, "generate", ENGRAM, "Hi", "--prompt", "there", "--prompt-ids", ids, *options))
    assert [output["prompt"] for output in outputs] == ["Hi", "there", None]
    assert outputs[2]["prompt_token_ids"] == prompt
    completion = outputs[2]["outputs"][0]
    assert completion["token_ids"] == tokens["bounded"]
    assert completion["finish_reason"] == "length"
    assert [list(entries)[0] for entries in completion["logprobs"]] == [str(token) for token in tokens["bounded"]]
    assert outputs[2]["metrics"]["replay_mode"] == "bounded"
    assert outputs[2]["metrics"]["prompt_rows"] == len(prompt)


def test_generate_without_a_tokenizer_prints_ids(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = TESTS / "data" / "v41-tiny"
    prompt, tokens = golden(checkpoint)
    ids = ",".join(map(str, prompt))
    options = ["--max-tokens", 12, "--temperature", 0, "--ignore-eos", *SMALL]
    assert run(capsys, "generate", checkpoint, "--prompt-ids", ids, *options).split() == [
        str(t) for t in tokens["bounded"]
    ]


def test_prepare_writes_engrams_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(ENGRAM / file, tmp_path / file)
    assert "engram_vocabulary.json" in run(capsys, "prepare", tmp_path)
    (tmp_path / "tokenizer.json").unlink()  # the engine reads the prepared map alone
    prompt, tokens = golden()
    ids = ",".join(map(str, prompt))
    options = ["--max-tokens", 12, "--temperature", 0, "--ignore-eos", *SMALL]
    assert run(capsys, "generate", tmp_path, "--prompt-ids", ids, *options).split() == [
        str(t) for t in tokens["bounded"]
    ]
    assert "nothing to prepare" in run(capsys, "prepare", TESTS / "data" / "v41-tiny")


def test_inspect_says_what_the_engine_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where more requests run than max_num_batched_tokens has rows: each of them brings one."""
    options = {"max_num_seqs": 40, "max_num_batched_tokens": 8, "max_model_len": 64, "page_size": 4}
    flags = [text for name, value in options.items() for text in ("--" + name.replace("_", "-"), str(value))]
    facts = json.loads(run(capsys, "inspect", ENGRAM, "--json", *flags))
    stats = reprise.LLM(ENGRAM, **options, num_threads=1, use_tqdm=False).stats()
    assert facts["max_model_len"] == stats.max_model_len == 64
    sizes = [(group["name"], group["num_pages"], group["bytes"]) for group in facts["cache_groups"]]
    assert sizes == [(group.name, group.num_pages, group.bytes) for group in stats.cache_groups]


def test_inspect_names_facts_and_roles(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(run(capsys, "inspect", ENGRAM, "--json", *SMALL))
    config = json.loads((ENGRAM / "config.json").read_text())["text_config"]
    for field in ("vocab_size", "hidden_size", "sliding_window", "compress_ratios", "kv_source_layer_ids"):
        assert facts["config"][field] == config[field]
    assert [layer["role"] for layer in facts["layers"]] == ["encoder"] * 6 + ["replay"] * 4
    assert facts["layers"][4]["kv_source"] == 2 and facts["layers"][9]["index_source"] == 7
    assert facts["replay"] == {"mode": "bounded", "reason": ""}
    assert {group["name"] for group in facts["cache_groups"]} == {"window", "compressed", "partial"}
    assert all(group["bytes"] > 0 for group in facts["cache_groups"])
    assert sum(layer["share"] for layer in facts["layers"]) == pytest.approx(1)
    speedups = [facts["prefill"][mode]["speedup"] for mode in ("off", "exact", "bounded")]
    assert speedups[0] == 1 and speedups == sorted(speedups)
    text = run(capsys, "inspect", ENGRAM, *SMALL)
    assert "publishes KV" in text and "Engram" in text
    assert "last_row: the replay layers own window KV" in run(capsys, "inspect", ENGRAM, "--replay", "last_row", *SMALL)


def test_bench_engine_reports_every_mode(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", TESTS / "data" / "v41-tiny", "--prompt-len", "20,40", "--max-tokens", 3, "--repeat", 1]
    report = json.loads(run(capsys, "bench", "engine", *options, "--num-prompts", 2, "--json"))
    assert [(r["prompt_len"], r["replay"]) for r in report["results"]] == [
        (length, mode) for length in (20, 40) for mode in ("off", "bounded", "exact")
    ]
    assert all(r["prefill_rows_per_s"] > 0 and r["decode_tokens_per_s"] > 0 for r in report["results"])
    assert all(r["prefill_rows_per_s_ratio"] == 1 for r in report["results"] if r["replay"] == "off")
    rows = {(r["prompt_len"], r["replay"]): r["replay_rows_run"] for r in report["results"]}
    assert rows[40, "bounded"] < rows[40, "off"]
    assert "prefill rows/s" in run(capsys, "bench", "engine", *options)


MISTAKES = {
    "missing checkpoint": (["generate", "/nowhere", "--prompt-ids", "1"], "/nowhere"),
    "no prompt": (["generate", str(ENGRAM)], "--prompt"),
    "ids that are none": (["generate", str(ENGRAM), "--prompt-ids", "1,x"], "1,x"),
    "id beyond the vocabulary": (["generate", str(ENGRAM), "--prompt-ids", "288", *SMALL], "288"),
    "bad sampling value": (["generate", str(ENGRAM), "hi", "--top-p", "2"], "top_p"),
    "inspect of nothing": (["inspect", "/nowhere"], "/nowhere"),
    "prepare of nothing": (["prepare", "/nowhere"], "/nowhere"),
    "bench of an unknown mode": (["bench", "engine", "--replay", "some"], "some"),
}


@pytest.mark.parametrize(("argv", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("reprise: error: ") and message in err
    assert err.count("\n") == 1 and err.endswith("\n")


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["fly"])
    assert exit.value.code == 2
    assert "fly" in capsys.readouterr().err


def test_runs_as_a_module() -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent / "python")}
    command = [sys.executable, "-m", "reprise", "generate", "/nowhere", "--prompt-ids", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert done.stdout == "" and "Traceback" not in done.stderr and "/nowhere" in done.stderr
