"""Benchmarks. Each module has add_arguments(parser) and main(args) -> exit code; its first line is its help."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def integers(text: str) -> list[int]:
    """The type of an option that takes a list: 1,2,4."""
    try:
        return [int(item) for item in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"wanted integers such as 1,2,4 but got {text!r}") from None


def on_checkpoint(args: argparse.Namespace, measure: Callable[[Path], Any]) -> Any:
    """Measures args.model, or where it is None a random checkpoint of args.preset in a temporary folder."""
    if args.model:
        return measure(Path(args.model))
    from reprise.presets import write_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        return measure(write_checkpoint(args.preset, folder))
