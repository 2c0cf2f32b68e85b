"""The benchmarks in small: what they print, not how fast it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reprise.cli import main


def report(capsys: pytest.CaptureFixture[str], *args: object) -> object:
    assert main(["bench", *(str(arg) for arg in args), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_graphs_compare_decode_steps(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model", data_dir / "v41-tiny", "--num-prompts", "1,3", "--max-tokens", 4, "--repeat", 1)
    results = report(capsys, "graphs", *options)["results"]
    assert [r["num_prompts"] for r in results] == [1, 3]
    for r in results:
        assert r["speedup"] == pytest.approx(r["eager_ms"] / r["graph_ms"])
    assert main(["bench", "graphs", *map(str, options), "--graph-buckets", "2"]) == 2
    assert "bucket for 3 requests" in capsys.readouterr().err


def test_replay_holds_modes_against_off(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model", data_dir / "v41-tiny", "--prompt-len", "40", "--repeat", 1)
    results = report(capsys, "replay", *options)["results"]
    assert [r["replay"] for r in results] == ["off", "bounded", "exact"]
    off, bounded, exact = results
    assert off["efficiency"] == pytest.approx(1)
    for r in results:
        assert r["efficiency"] == pytest.approx(r["speedup"] / r["predicted_speedup"])
    # Four replay layers and W = 8. Bounded: the last W rows, and of the last layer the last row. Exact: 7 rows fewer
    # from layer to layer.
    assert off["replay_rows_by_layer"] == [40, 40, 40, 40]
    assert bounded["replay_rows_by_layer"] == [8, 8, 8, 1]
    assert exact["replay_rows_by_layer"] == [22, 15, 8, 1]


def test_replay_layers_compares_three_forms(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--rows", "64", "--requests", "1,2", "--threads", 1, "--window", 8, "--hidden-size", 16, "--repeats", 1)
    results = report(capsys, "replay-layers", *options)
    assert [r["requests"] for r in results] == [1, 2]
    for r in results:
        assert r["drop_in_ratio"] == pytest.approx(r["plain_ms"] / r["drop_in_ms"])
        assert r["engine_ratio"] == pytest.approx(r["plain_ms"] / r["engine_ms"])


@pytest.mark.parametrize(
    "options", [("graphs", "--num-prompts"), ("replay", "--prompt-len"), ("replay-layers", "--rows")]
)
def test_lists_are_checked(capsys: pytest.CaptureFixture[str], options: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["bench", *options, "8,x"])
    assert exit.value.code == 2
    assert "wanted integers such as 1,2,4 but got '8,x'" in capsys.readouterr().err
