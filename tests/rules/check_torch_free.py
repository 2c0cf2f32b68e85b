"""Compiles each torch-free header alone, without torch on the path: `check_torch_free.py COMPILER ENGINE_FOLDER`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from check_source import CONTROL_HEADERS


def compiles(compiler: str, engine: Path, header: Path) -> tuple[bool, str]:
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-x", "c++"]
    # Included from standard input, since a header as main file warns of its #pragma once.
    done = subprocess.run(
        [*command, "-I", str(engine / "include"), "-I", str(engine), "-"],
        input=f'#include "{header}"\n',
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0, done.stderr


def main() -> int:
    compiler, engine = sys.argv[1], Path(sys.argv[2])
    public = engine / "include" / "reprise"
    if compiles(compiler, engine, public / "forward_context.h")[0]:
        print("self-test: forward_context.h, which holds tensors, compiles without torch: torch is on the default path")
        return 1
    headers = [public / name for name in sorted(CONTROL_HEADERS)] + sorted((engine / "scheduler").glob("*.h"))
    failed = 0
    for header in headers:
        ok, message = compiles(compiler, engine, header)
        if not ok:
            failed += 1
            print(f"{header.relative_to(engine)} does not compile alone and without torch:\n{message}")
    print(f"{len(headers) - failed} of {len(headers)} torch-free headers compile alone")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
