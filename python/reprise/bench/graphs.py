"""Decode steps from graphs of fixed shape beside steps that run layer by layer."""

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

PROMPT_LEN = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", default="100m", help="size of the random checkpoint")
    parser.add_argument("--model", help="a checkpoint folder instead of a random one")
    parser.add_argument("--num-prompts", type=integers, default=[1, 4], help="requests that decode at once, as a list")
    parser.add_argument(
        "--graph-buckets", type=integers, default=[1, 2, 4, 8, 16, 32, 64], help="row counts that there are graphs for"
    )
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens to decode after each prompt")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each, interleaved; medians are shown")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--num-threads", type=int, default=0)
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> int:
    counts, buckets = args.num_prompts, args.graph_buckets
    if min([*counts, args.repeat]) < 1 or args.max_tokens < 2:
        raise ValueError("wanted num-prompts and repeat >= 1 and max-tokens >= 2")
    if max(counts) > max(buckets):
        raise ValueError(f"wanted a graph bucket for {max(counts)} requests but the largest is {max(buckets)}")
    results = on_checkpoint(args, lambda folder: measure(folder, counts, buckets, args))
    if args.json:
        print(json.dumps({"preset": args.model or args.preset, "results": results}, indent=1))
        return 0
    print(f"{'requests':>8} {'eager ms/step':>14} {'graph ms/step':>14} {'speedup':>8}")
    for r in results:
        print(f"{r['num_prompts']:>8} {r['eager_ms']:>14.3f} {r['graph_ms']:>14.3f} {r['speedup']:>8.2f}")
    return 0


def measure(model: Path, counts: list[int], buckets: list[int], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds per decode step, medians, by number of requests. Two engines take turns, one with graphs; the
    speedup is the median of the ratios within a round."""
    engines = {name: _load(model, graphs, max(counts), args) for name, graphs in (("eager", []), ("graph", buckets))}
    generator = random.Random(0)
    vocab_size = engines["eager"].model_facts().vocab_size
    results = []
    for count in counts:
        times: dict[str, list[float]] = {name: [] for name in engines}
        for repeat in range(args.repeat + 1):
            prompts = [[generator.randrange(vocab_size) for _ in range(PROMPT_LEN)] for _ in range(count)]
            for name, engine in engines.items():
                milliseconds = _decode(engine, prompts, args.max_tokens)
                if repeat > 0:  # the first makes the graphs and warms up
                    times[name].append(milliseconds)
        speedups = [eager / graph for eager, graph in zip(times["eager"], times["graph"], strict=True)]
        results.append(
            {
                "num_prompts": count,
                "eager_ms": statistics.median(times["eager"]),
                "graph_ms": statistics.median(times["graph"]),
                "speedup": statistics.median(speedups),
            }
        )
    return results


def _load(model: Path, buckets: list[int], max_num_seqs: int, args: argparse.Namespace) -> reprise.Engine:
    return reprise.LLM(
        model,
        dtype=args.dtype,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max([2048, PROMPT_LEN * max_num_seqs, *buckets]),
        max_model_len=PROMPT_LEN + args.max_tokens,
        num_threads=args.num_threads,
        graph_buckets=buckets,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        use_tqdm=False,
    ).engine


def _decode(engine: reprise.Engine, prompts: list[list[int]], max_tokens: int) -> float:
    """Prefills all prompts in one step, then times the steps that decode them together."""
    params = reprise.SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True).to_engine(0)
    for prompt in prompts:
        engine.submit(reprise.Request(prompt, params))
    _step(engine)
    start = time.perf_counter()
    steps = 0
    while engine.has_unfinished():
        _step(engine)
        steps += 1
    return 1e3 * (time.perf_counter() - start) / steps


def _step(engine: reprise.Engine) -> None:
    for output in engine.step():
        if output.error:
            raise RuntimeError(output.error)
