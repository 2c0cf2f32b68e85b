"""Uses an installed reprise as an outsider: `wheel.py CHECKPOINT`. Run from a folder that holds no reprise."""

from __future__ import annotations

import sys
from importlib.metadata import requires, version
from importlib.resources import files

import reprise


def main(checkpoint: str) -> None:
    package = files("reprise")
    for name in ("py.typed", "_reprise.pyi"):
        assert package.joinpath(name).is_file(), f"the wheel lacks reprise/{name}"
    assert "site-packages" in str(package), f"wanted the installed package but got {package}"
    assert version("reprise") == reprise.__version__, f"{version('reprise')} is not {reprise.__version__}"
    torch_requirement = [line for line in requires("reprise") or [] if line.startswith("torch")]
    assert torch_requirement == ["torch==2.13.*"], torch_requirement
    llm = reprise.LLM(checkpoint)
    outputs = llm.generate(["Hello"], reprise.SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
    assert len(outputs[0].outputs[0].token_ids) == 4, outputs
    print(f"reprise from {package}: generated 4 tokens")


if __name__ == "__main__":
    main(sys.argv[1])
