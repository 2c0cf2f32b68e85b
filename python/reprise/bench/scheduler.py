"""What the scheduler costs without a model: plan plus commit, allocations, submission; an installed peer beside it."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

import reprise
from reprise.bench import scheduler_peer

PROGRAM = Path(reprise.__file__).parent / "bin" / "bench_scheduler"
COUNTS = ("prompt_len", "page_size", "max_num_batched_tokens", "steps", "repeat", "finished", "submit_len", "seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", default="1,64,256,1024", help="running requests")
    parser.add_argument("--prompt-len", type=int, default=1024, help="tokens; under prefix sharing half are common")
    parser.add_argument("--page-size", type=int, default=64, help="tokens of a cache page")
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192, help="rows of a prefill step")
    parser.add_argument("--steps", type=int, default=64, help="decode steps timed at a time")
    parser.add_argument("--repeat", type=int, default=3, help="samples a round, after one that warms up")
    parser.add_argument("--rounds", type=int, default=5, help="runs of the program, a peer's in between")
    parser.add_argument("--finished", type=int, default=10000, help="requests that came and went before")
    parser.add_argument("--submit-len", type=int, default=100000, help="tokens of the prompt whose submission is timed")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--no-peer", action="store_true", help=f"leave {scheduler_peer.PACKAGE} out")
    parser.add_argument("--json", action="store_true")


def main(args: argparse.Namespace) -> int:
    result = measure(args)
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        _print_tables(result)
    return 0


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Medians over rounds, in which the program's runs and the peer's alternate, so that drift hits both alike."""
    if args.rounds < 1:
        raise ValueError(f"wanted at least one round but got {args.rounds}")
    load_before = os.getloadavg()[0]
    ours = [_run_program(args)]
    peer = None
    note = "left out" if args.no_peer else f"{scheduler_peer.PACKAGE} is not installed"
    if not args.no_peer and scheduler_peer.is_installed():
        peer = scheduler_peer.Peer(ours[0], args.rounds)
        peer.sample()
    for _ in range(args.rounds - 1):
        ours.append(_run_program(args))
        if peer is not None:
            peer.sample()
    return {
        "rounds": args.rounds,
        "load_average": [load_before, os.getloadavg()[0]],
        "scheduler": _median_of(ours),
        "peer": None if peer is None else peer.result(),
        "peer_note": note if peer is None else scheduler_peer.NOTE,
    }


def _run_program(args: argparse.Namespace) -> dict[str, Any]:
    if not PROGRAM.exists():
        raise RuntimeError(f"wanted the program {PROGRAM}: build it with -DREPRISE_BUILD_BENCH=ON")
    options = [f"--requests={args.requests}", *(f"--{name.replace('_', '-')}={vars(args)[name]}" for name in COUNTS)]
    command = [str(PROGRAM), *(part for option in options for part in option.split("=", 1))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        message = done.stderr.strip() or f"exit code {done.returncode}"
        raise (ValueError if done.returncode == 2 else RuntimeError)(f"{PROGRAM.name}: {message}")
    return json.loads(done.stdout)


def _median_of(values: list[Any]) -> Any:
    """Of values of one shape: the median of each number in them."""
    first = values[0]
    if isinstance(first, dict):
        return {key: _median_of([value[key] for value in values]) for key in first}
    if isinstance(first, list):
        return [_median_of(list(items)) for items in zip(*values, strict=True)]
    return first if all(value == first for value in values) else statistics.median(values)


def _print_tables(result: dict[str, Any]) -> None:
    ours, peer = result["scheduler"], result["peer"]
    print(f"plan plus commit in microseconds of processor time, prompts of {ours['prompt_len']} tokens")
    print(
        f"{'':>8} {'prefix':>7} | {'decode':>9} {'us/':>8} {'allocations':>11} {'us/request after':>16}"
        f" | {'submit us/':>10} {'prefill':>9} {'us/':>8} {'allocations':>11} {'':>6}"
    )
    finished = f"{ours['finished']} finished"
    print(
        f"{'requests':>8} {'sharing':>7} | {'us/step':>9} {'request':>8} {'per step':>11} {finished:>16}"
        f" | {'request':>10} {'us/step':>9} {'request':>8} {'per step':>11} {'steps':>6}"
    )
    for r in ours["results"]:
        print(
            f"{r['requests']:>8} {'on' if r['prefix_sharing'] else 'off':>7}"
            f" | {r['decode_us_per_step']:>9.3f} {r['decode_us_per_request']:>8.4f}"
            f" {r['decode_allocations_per_step']:>11.2f} {r['decode_us_per_request_after_finished']:>16.4f}"
            f" | {r['submit_us_per_request']:>10.3f} {r['prefill_us_per_step']:>9.2f}"
            f" {r['prefill_us_per_request']:>8.3f} {r['prefill_allocations_per_step']:>11.2f}"
            f" {r['prefill_steps']:>6.0f}"
        )
    for s in ours["submit"]:
        hashing = "with hashing" if s["prefix_sharing"] else "without hashing"
        print(f"submit {s['prompt_len']} tokens {hashing}: {s['ms']:.3f} ms")
    if peer is None:
        print(f"peer: {result['peer_note']}")
    else:
        print(f"\n{peer['name']} {peer['version']}: {result['peer_note']}")
        print(f"{'':>8} {'prefix':>7} | {'decode':>10} {'':>9} | {'submit + prefill':>16} {'':>9}")
        print(
            f"{'requests':>8} {'sharing':>7} | {'us/request':>10} {'over ours':>9}"
            f" | {'us/request':>16} {'over ours':>9}"
        )
        for theirs, r in zip(peer["results"], ours["results"], strict=True):
            decode = theirs["decode_us_per_request"]
            print(
                f"{theirs['requests']:>8} {'on' if theirs['prefix_sharing'] else 'off':>7}"
                f" | {decode:>10.3f} {decode / r['decode_us_per_request']:>9.1f}"
                f" | {_until_first_token(theirs):>16.2f} {_until_first_token(theirs) / _until_first_token(r):>9.1f}"
            )
    before, after = result["load_average"]
    print(f"load average before and after: {before:.1f}, {after:.1f}")


def _until_first_token(r: dict[str, Any]) -> float:
    """Together, because one scheduler hashes a prompt when it is submitted and another when it is admitted."""
    return r["submit_us_per_request"] + r["prefill_us_per_request"]
