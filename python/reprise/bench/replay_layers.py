"""What DecoderReplayLayers itself costs: gather, dispatch and scatter around layers that do nothing.

The layers return the residual and the pre-mix they get. Three forms run interleaved on the same tensors, each timed
from the call until its outputs are dropped:
  plain   index_select, new_zeros and index_copy_ in PyTorch
  drop-in DecoderReplayLayers(...), outputs in batch rows
  engine  run_kept, outputs of the kept rows only; one run of rows is passed as views
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from reprise import DecoderReplayLayers
from reprise.bench import integers

Tensors = tuple[torch.Tensor, ...]


@dataclass
class Result:
    """One setting; times are medians in milliseconds, ratios say how many times faster than the plain form."""

    rows: int
    requests: int
    threads: int
    plain_ms: float
    drop_in_ms: float
    engine_ms: float
    drop_in_ratio: float
    engine_ratio: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this benchmark's options to a parser."""
    parser.add_argument("--rows", type=integers, default=[2048, 8192, 32768], help="batch rows, as a list: 2048,8192")
    parser.add_argument("--requests", type=integers, default=[1, 8], help="requests that share the rows")
    parser.add_argument("--threads", type=integers, default=[1, 2], help="threads of torch")
    parser.add_argument("--window", type=int, default=128, help="kept rows of each request")
    parser.add_argument("--hidden-size", type=int, default=5120)
    parser.add_argument("--streams", type=int, default=4, help="residual streams")
    parser.add_argument("--repeats", type=int, default=15, help="timed rounds over the three forms")
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    """Runs the benchmark and prints a table, or JSON."""
    results = run(args)
    if args.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return 0
    print(f"{'rows':>6} {'requests':>8} {'threads':>7} {'plain ms':>9} {'drop-in ms':>18} {'engine ms':>18}")
    for r in results:
        print(
            f"{r.rows:>6} {r.requests:>8} {r.threads:>7} {r.plain_ms:>9.2f} "
            f"{r.drop_in_ms:>9.3f} (1/{r.drop_in_ratio:<5.0f}) {r.engine_ms:>9.3f} (1/{r.engine_ratio:<5.0f})"
        )
    return 0


def run(args: argparse.Namespace) -> list[Result]:
    """Measures every setting. ValueError for one whose requests are shorter than the window."""
    for num_rows in args.rows:
        for requests in args.requests:
            if requests < 1 or num_rows // requests < args.window:
                raise ValueError(
                    f"wanted requests of at least {args.window} rows but got {requests} in {num_rows} rows"
                )
    if args.repeats < 1 or min(args.threads) < 1:
        raise ValueError("wanted at least one repeat and one thread")
    results = []
    threads_before = torch.get_num_threads()
    try:
        for num_rows in args.rows:
            states = _states(num_rows, args.hidden_size, args.streams)
            for requests in args.requests:
                for threads in args.threads:
                    torch.set_num_threads(threads)
                    results.append(_measure(states, requests, threads, args))
                    print(".", end="", file=sys.stderr, flush=True)
    finally:
        torch.set_num_threads(threads_before)
        print(file=sys.stderr)
    return results


def _states(num_rows: int, hidden_size: int, streams: int) -> Tensors:
    """Hidden states, pre, post and residual mixes, residual."""
    hidden = torch.ones(num_rows, hidden_size, dtype=torch.bfloat16)
    mixes = (torch.rand(num_rows, streams) for _ in range(3))
    return (hidden, *mixes, torch.ones(num_rows, streams, hidden_size, dtype=torch.bfloat16))


def _layers(
    hidden: torch.Tensor, pre: torch.Tensor, post: torch.Tensor, mix: torch.Tensor, residual: torch.Tensor
) -> Tensors:
    return residual, pre


def _measure(states: Tensors, requests: int, threads: int, args: argparse.Namespace) -> Result:
    num_rows = states[0].shape[0]
    ends = [num_rows * (i + 1) // requests for i in range(requests)]
    rows = torch.cat([torch.arange(end - args.window, end) for end in ends])
    layers = DecoderReplayLayers(args.window, _layers, [])
    layers.rows = rows

    def plain() -> Tensors:
        outputs = _layers(*(state.index_select(0, rows) for state in states))
        return tuple(out.new_zeros(num_rows, *out.shape[1:]).index_copy_(0, rows, out) for out in outputs)

    forms: dict[str, Callable[[], Tensors]] = {
        "plain": plain,
        "drop_in": lambda: layers(*states),
        "engine": lambda: layers.run_kept(*states),
    }
    _check(forms, rows)
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(args.repeats):
        for name, form in forms.items():
            start = time.perf_counter()
            form()
            times[name].append(1e3 * (time.perf_counter() - start))
    plain_ms, drop_in_ms, engine_ms = (statistics.median(times[name]) for name in forms)
    return Result(
        num_rows, requests, threads, plain_ms, drop_in_ms, engine_ms, plain_ms / drop_in_ms, plain_ms / engine_ms
    )


def _check(forms: dict[str, Callable[[], Tensors]], rows: torch.Tensor) -> None:
    """Also warms the forms up: what is timed is what gives the same values."""
    for plain, drop_in, kept in zip(*(form() for form in forms.values()), strict=True):
        if not torch.equal(plain, drop_in) or not torch.equal(plain[rows], kept):
            raise RuntimeError("the forms disagree; the times would mean nothing")


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(_parser)
    sys.exit(main(_parser.parse_args()))
