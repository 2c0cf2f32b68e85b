"""The forward context: what the layers of one forward read about the rows they run on.

Contexts and their per-thread stack live in C++, so layers in both languages see the same one. Names and behaviour are
those of vLLM's helpers: a script written for them runs with the import changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from reprise._reprise import (
    ForwardContext,
    get_forward_context,
    is_forward_context_available,
    override_forward_context,
)

__all__ = [
    "ForwardContext",
    "create_forward_context",
    "get_forward_context",
    "is_forward_context_available",
    "override_forward_context",
    "set_forward_context",
]

# `dataclasses.replace`, `fields` and `asdict` work on contexts.
ForwardContext.__dataclass_fields__ = dataclasses.make_dataclass(
    "ForwardContext", list(vars(ForwardContext()))
).__dataclass_fields__


def create_forward_context(attn_metadata: Any, vllm_config: Any = None, **fields: Any) -> ForwardContext:
    """A context over attention metadata.

    `vllm_config` may be None; of its compilation_config the layers by name (static_forward_context) are taken. Fields
    given as None take their default.
    """
    compilation = getattr(vllm_config, "compilation_config", None)
    given = {name: value for name, value in fields.items() if value is not None}
    layers = getattr(compilation, "static_forward_context", None)
    if layers is not None:
        given.setdefault("no_compile_layers", layers)
    return ForwardContext(attn_metadata=attn_metadata, **given)


@contextmanager
def set_forward_context(attn_metadata: Any, vllm_config: Any = None, **fields: Any) -> Iterator[None]:
    """Makes a new context current for the block; see create_forward_context."""
    with override_forward_context(create_forward_context(attn_metadata, vllm_config, **fields)):
        yield
