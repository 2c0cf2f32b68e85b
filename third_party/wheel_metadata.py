"""Version and dependencies of the wheel; scikit-build-core asks for them ([[tool.dynamic-metadata]] in pyproject.toml).

libtorch keeps no binary interface from one minor version to the next, so a wheel runs with the minor version it was
built with and says so. That version is the one in the environment that the wheel is built for; pip's isolated builds
hide it from `import`, but its folder is known. Only where there is none does the build ask for a torch of its own: the
tested one.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any


def find_torch() -> str | None:
    """Version of the torch that third_party/torch.cmake finds; None when there is none."""
    for path in [sys.path, [sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]]:
        for distribution in distributions(name="torch", path=path):
            return distribution.version
    return None


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def require_torch(settings: Mapping[str, Any]) -> str:
    """The wheel's requirement on torch."""
    torch = settings["torch"]
    found = find_torch()
    if found is None:  # an sdist
        return f"torch>={torch['minimum']},<{torch['below']}"
    if not numbers(torch["minimum"]) <= numbers(found) < numbers(torch["below"]):
        raise ValueError(
            f"[build] wanted torch >={torch['minimum']},<{torch['below']} but got {found}: "
            f"pip install torch=={torch['tested']} first"
        )
    major, minor = numbers(found)
    return f"torch=={major}.{minor}.*"


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    cmake = Path(settings["cmake-project"]).read_text()
    version = re.search(r"project\(reprise VERSION ([\d.]+)", cmake)
    if version is None:
        raise ValueError(f"[build] wanted project(reprise VERSION x.y.z) in {settings['cmake-project']}")
    return {"version": version[1], "dependencies": [require_torch(settings), *settings["dependencies"]]}


def get_requires_for_dynamic_metadata(settings: Mapping[str, Any]) -> list[str]:
    return [] if find_torch() else [f"torch=={settings['torch']['tested']}"]


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    return {"dependencies": True}
