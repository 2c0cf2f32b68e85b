"""Prefill by replay mode: measured speed beside what the operations saved predict."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import reprise
from reprise._reprise import load_model_config
from reprise.bench import integers, on_checkpoint
from reprise.costs import predicted_speedup, prefill_operations
from reprise.sampling_params import replay_mode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", default="small", help="size of the random checkpoint (bfloat16)")
    parser.add_argument("--model", help="a checkpoint folder instead of a random one")
    parser.add_argument("--prompt-len", type=integers, default=[512, 2048, 8192], help="prompt lengths in tokens")
    parser.add_argument("--replay", default="bounded,exact", help="modes to hold against off")
    parser.add_argument(
        "--repeat", type=int, default=5, help="runs per mode and length, interleaved; medians are shown"
    )
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048, help="rows of a chunk")
    parser.add_argument("--num-threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> int:
    modes = ["off", *(mode for mode in args.replay.split(",") if mode != "off")]
    for mode in modes:
        replay_mode(mode)
    lengths = args.prompt_len
    if min([*lengths, args.repeat]) < 1:
        raise ValueError("wanted prompt-len and repeat >= 1")
    results = on_checkpoint(args, lambda folder: measure(folder, modes, lengths, args))
    if args.json:
        print(json.dumps({"preset": args.model or args.preset, "results": results}, indent=1))
    else:
        _print_table(results)
    return 0


def measure(model: Path, modes: list[str], lengths: list[int], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Per length and mode. One engine serves all modes in turn, so that the machine's drift hits all alike; the speedup
    is the median of the runs' ratios to the run of off beside them."""
    llm = reprise.LLM(
        model,
        max_num_seqs=1,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len=max(lengths) + 1,
        num_threads=args.num_threads,
        skip_tokenizer_init=True,
        use_tqdm=False,
    )
    config = load_model_config(str(model))
    generator = random.Random(args.seed)
    results = []
    for length in lengths:
        times: dict[str, list[float]] = {mode: [] for mode in modes}
        rows: dict[str, list[int]] = {}
        for repeat in range(args.repeat + 1):
            prompt = [generator.randrange(config.vocab_size) for _ in range(length)]
            for mode in modes:
                seconds, rows[mode] = _prefill(llm, mode, prompt)
                if repeat > 0:  # the first warms up
                    times[mode].append(seconds)
        plain = sum(prefill_operations(config, "off", length))
        for mode in modes:
            speedup = statistics.median(off / own for off, own in zip(times["off"], times[mode], strict=True))
            predicted = predicted_speedup(config, mode, length)
            results.append(
                {
                    "prompt_len": length,
                    "replay": mode,
                    "time_to_first_token": statistics.median(times[mode]),
                    "prefill_rows_per_s": length / statistics.median(times[mode]),
                    "replay_rows_by_layer": rows[mode],
                    "flop_share": sum(prefill_operations(config, mode, length)) / plain,
                    "speedup": speedup,
                    "predicted_speedup": predicted,
                    "efficiency": speedup / predicted,
                }
            )
    return results


def _prefill(llm: reprise.LLM, mode: str, prompt: list[int]) -> tuple[float, list[int]]:
    params = reprise.SamplingParams(max_tokens=1, temperature=0, ignore_eos=True).to_engine(0)
    start = time.perf_counter()
    llm.engine.submit(reprise.Request(prompt, params, replay=replay_mode(mode)))
    outputs = []
    while not outputs:
        outputs = llm.engine.step()
    seconds = time.perf_counter() - start
    if outputs[0].error:
        raise RuntimeError(outputs[0].error)
    return seconds, outputs[0].metrics.replay_rows_by_layer


def _print_table(results: list[dict[str, Any]]) -> None:
    print(
        f"{'prompt':>7} {'replay':>8} {'first token s':>13} {'rows/s':>9} {'operations':>10} {'speedup':>8}"
        f" {'predicted':>9} {'efficiency':>10}  replay rows by layer"
    )
    for r in results:
        by_layer = r["replay_rows_by_layer"]
        rows = str(by_layer[0]) if len(set(by_layer)) == 1 else ",".join(map(str, by_layer))
        print(
            f"{r['prompt_len']:>7} {r['replay']:>8} {r['time_to_first_token']:>13.3f} {r['prefill_rows_per_s']:>9.1f}"
            f" {r['flop_share']:>9.1%} {r['speedup']:>8.2f} {r['predicted_speedup']:>9.2f}"
            f" {r['efficiency']:>10.2f}  {rows}"
        )
