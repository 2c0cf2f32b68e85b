"""scikit-build-core's build backend, which first looks for what pip cannot bring: a compiler and Python's headers.

set_up.sh says in one line what is missing, before pip fetches torch and the build begins.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from scikit_build_core import build as _backend
from scikit_build_core.build import *  # noqa: F403  (PEP 517's hooks)

SET_UP = Path(__file__).with_name("set_up.sh")


def set_up() -> None:
    command = ["bash", str(SET_UP), "module"]
    if subprocess.run(command, env={**os.environ, "PYTHON": sys.executable}).returncode:
        sys.exit(1)


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    set_up()
    return _backend.get_requires_for_build_wheel(config_settings)


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    set_up()
    return _backend.get_requires_for_build_editable(config_settings)
