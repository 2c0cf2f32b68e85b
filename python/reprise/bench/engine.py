"""Prefill rows/s and decode tokens/s per replay mode, on a checkpoint of random weights."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import reprise
from reprise.bench import integers, on_checkpoint
from reprise.sampling_params import replay_mode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", default="100m", help="size of the random checkpoint")
    parser.add_argument("--model", help="a checkpoint folder instead of a random one")
    parser.add_argument("--replay", default="off,bounded,exact", help="modes, the first is the base of the ratios")
    parser.add_argument("--prompt-len", type=integers, default=[512, 2048], help="prompt lengths in tokens")
    parser.add_argument("--max-tokens", type=int, default=32, help="tokens to decode after each prompt")
    parser.add_argument("--num-prompts", type=int, default=1, help="prompts at once")
    parser.add_argument(
        "--repeat", type=int, default=3, help="runs per mode and length, interleaved; medians are shown"
    )
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--num-threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="of weights and prompts")
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> int:
    modes = args.replay.split(",")
    for mode in modes:
        replay_mode(mode)
    lengths = args.prompt_len
    if min([*lengths, args.repeat, args.num_prompts]) < 1 or args.max_tokens < 2:
        raise ValueError("wanted prompt-len, repeat and num-prompts >= 1 and max-tokens >= 2")
    results = on_checkpoint(args, lambda folder: measure(folder, modes, lengths, args))
    if args.json:
        print(json.dumps({"preset": args.model or args.preset, "results": results}, indent=1))
    else:
        _print_table(results, modes[0])
    return 0


def measure(model: Path, modes: list[str], lengths: list[int], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Medians per mode and length. One engine serves all modes, whose runs alternate, so that drift hits all alike."""
    llm = reprise.LLM(
        model,
        dtype=args.dtype,
        max_num_seqs=args.num_prompts,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len=max(lengths) + args.max_tokens,
        num_threads=args.num_threads,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        use_tqdm=False,
    )
    vocab_size = llm.engine.model_facts().vocab_size
    generator = random.Random(args.seed)
    results = []
    for length in lengths:
        runs: dict[str, list[dict[str, float]]] = {mode: [] for mode in modes}
        for repeat in range(args.repeat + 1):
            prompts = [[generator.randrange(vocab_size) for _ in range(length)] for _ in range(args.num_prompts)]
            for mode in modes:
                run = _run(llm, mode, prompts, args.max_tokens)
                if repeat > 0:  # the first warms up
                    runs[mode].append(run)
        base = runs[modes[0]]
        for mode in modes:
            result: dict[str, Any] = {"replay": mode, "prompt_len": length, "num_prompts": args.num_prompts}
            for name in runs[mode][0]:
                result[name] = statistics.median(run[name] for run in runs[mode])
            for name in ("prefill_rows_per_s", "decode_tokens_per_s"):
                ratios = [run[name] / first[name] for run, first in zip(runs[mode], base, strict=True)]
                result[f"{name}_ratio"] = statistics.median(ratios)
            results.append(result)
    return results


def _run(llm: reprise.LLM, mode: str, prompts: list[list[int]], max_tokens: int) -> dict[str, float]:
    """Prefill ends with the last prompt's first token; what comes later is decode."""
    params = reprise.SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True).to_engine(0)
    engine = llm.engine
    before = engine.stats()
    start = time.perf_counter()
    waiting = {engine.submit(reprise.Request(prompt, params, replay=replay_mode(mode))) for prompt in prompts}
    prefill_end, decoded, replay_rows = None, 0, 0
    while engine.has_unfinished():
        for output in engine.step():
            if output.error:
                raise RuntimeError(output.error)
            if prefill_end is not None:
                decoded += len(output.new_token_ids)
            elif output.new_token_ids:
                waiting.discard(output.id)
            if output.finished:
                replay_rows += output.metrics.replay_rows_run
        if prefill_end is None and not waiting:
            prefill_end = time.perf_counter()
    end = time.perf_counter()
    after = engine.stats()
    in_model = (after.model_seconds - before.model_seconds) / (after.step_seconds - before.step_seconds)
    return {
        "prefill_rows_per_s": sum(map(len, prompts)) / (prefill_end - start),
        "decode_tokens_per_s": decoded / (end - prefill_end),
        "engine_share": 1 - in_model,  # of the steps' time, outside the model
        "replay_rows_run": replay_rows,
    }


def _print_table(results: list[dict[str, Any]], base: str) -> None:
    over = f"over {base}"
    print(
        f"{'prompt':>7} {'replay':>8} {'prefill rows/s':>15} {over:>9}"
        f" {'decode tokens/s':>15} {over:>9} {'engine share':>12} {'replay rows':>11}"
    )
    for r in results:
        print(
            f"{r['prompt_len']:>7} {r['replay']:>8}"
            f" {r['prefill_rows_per_s']:>15.1f} {r['prefill_rows_per_s_ratio']:>9.2f}"
            f" {r['decode_tokens_per_s']:>15.1f} {r['decode_tokens_per_s_ratio']:>9.2f} {r['engine_share']:>12.1%}"
            f" {r['replay_rows_run']:>11.0f}"
        )
