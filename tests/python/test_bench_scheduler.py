"""`reprise bench scheduler` with tiny counts: what it prints, not how fast it was."""

from __future__ import annotations

import json

import pytest

from reprise.bench.scheduler import PROGRAM
from reprise.cli import main

TINY = ["--requests", "1,3", "--prompt-len", "300", "--steps", "130", "--repeat", "2", "--rounds", "2"]
TINY += ["--finished", "7", "--submit-len", "1000", "--max-num-batched-tokens", "256", "--no-peer"]

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="built without REPRISE_BUILD_BENCH")


def test_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scheduler", *TINY, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["peer"] is None and printed["rounds"] == 2
    ours = printed["scheduler"]
    assert (ours["prompt_len"], ours["finished"], ours["page_size"]) == (300, 7, 64)
    results = ours["results"]
    assert [(r["requests"], r["prefix_sharing"]) for r in results] == [(1, False), (3, False), (1, True), (3, True)]
    # Of 300 tokens in steps of 256 rows; where 150 are shared, two pages (128 tokens) are never run again, but a hit no
    # longer than the window of 128 is not adopted.
    assert [r["prefill_steps"] for r in results] == [2, 4, 2, 4]
    for r in results:
        assert r["decode_us_per_step"] > 0 and r["decode_us_per_step_after_finished"] > 0
        assert r["decode_us_per_request"] == pytest.approx(r["decode_us_per_step"] / r["requests"], rel=1e-3)
        assert r["submit_us_per_request"] > 0
        # 130 steps fill two pages of 64 for each request and move its window on: pages come from a pool, not the heap.
        assert r["decode_allocations_per_step"] == 0
        assert r["prefill_allocations_per_step"] > 0  # the counter counts
    assert [(s["prompt_len"], s["prefix_sharing"]) for s in ours["submit"]] == [(1000, False), (1000, True)]
    assert all(s["ms"] > 0 for s in ours["submit"])


def test_shared_prefix_saves_prefill_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scheduler", *TINY, "--prompt-len", "1024", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["scheduler"]["results"]
    # 1024 tokens in steps of 256; behind a hit of 512 the rows [384, 1024) run again (bounded rebuild, window 128).
    assert [r["prefill_steps"] for r in results] == [4, 12, 3, 8]


def test_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scheduler", *TINY]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split()[:2] for line in lines if line.split()[1:2] in (["on"], ["off"])]
    assert rows == [["1", "off"], ["3", "off"], ["1", "on"], ["3", "on"]]
    assert "peer: left out" in lines


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for options, message in (
        (["--requests", "0"], "wanted from 1 to max-num-batched-tokens - 1 requests but got 0"),
        (["--requests", "two"], "wanted an integer for --requests but got two"),
        (["--steps", "0"], "wanted a larger --steps than 0"),
        (["--rounds", "0"], "wanted at least one round but got 0"),
    ):
        assert main(["bench", "scheduler", *TINY, *options]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and message in err
