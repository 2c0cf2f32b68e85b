"""Checks how the sources are compiled: `check_compile_commands.py COMPILE_COMMANDS_JSON`.

The control plane has no torch on its include path; every engine source is compiled without contraction and fast math.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

TORCH = re.compile(r"[/ ]torch/include\b|torch_cpu")
LIBRARY = re.compile(r"CMakeFiles/(reprise_\w+)\.dir")


def problems_of(command: str) -> list[str]:
    library = LIBRARY.search(command)
    if library is None:
        return []
    problems = []
    if library[1] == "reprise_control" and TORCH.search(command):
        problems.append("torch is on the control plane's include path")
    if "-ffp-contract=off" not in command:
        problems.append("no -ffp-contract=off")
    if "-ffast-math" in command or "-Ofast" in command:
        problems.append("fast math")
    return problems


def main() -> int:
    good = "g++ -ffp-contract=off -o engine/CMakeFiles/reprise_control.dir/x.o -c x.cpp"
    bad = [good.replace("=off", "=fast"), good + " -isystem /venv/torch/include", good + " -ffast-math"]
    if problems_of(good) or not all(problems_of(command) for command in bad):
        print("self-test: the check cannot tell good commands from bad ones")
        return 1
    entries = json.loads(Path(sys.argv[1]).read_text())
    libraries = set()
    failed = 0
    for entry in entries:
        if library := LIBRARY.search(entry["command"]):
            libraries.add(library[1])
        for problem in problems_of(entry["command"]):
            failed += 1
            print(f"{entry['file']}: {problem}")
    if "reprise_control" not in libraries or "reprise_backends" not in libraries:
        print(f"wanted the engine's libraries in {sys.argv[1]} but got {sorted(libraries)}")
        return 1
    print(f"{len(entries)} compile commands, {failed} problems")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
