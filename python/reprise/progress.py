"""Progress bars on stderr for work that takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


@contextmanager
def load_progress(shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A callback for EngineConfig.on_load_progress (bytes done, bytes in all); None when not shown."""
    if not shown:
        yield None
        return
    with tqdm(desc="Loading weights", unit="B", unit_scale=True, unit_divisor=1024) as bar:

        def update(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield update


@contextmanager
def generate_progress(num_prompts: int, shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A callback (finished requests, generated tokens), each since the last call. Shown for two prompts or more."""
    with tqdm(total=num_prompts, desc="Processed prompts", disable=not shown or num_prompts < 2) as bar:
        tokens = 0

        def update(finished: int, new_tokens: int) -> None:
            nonlocal tokens
            tokens += new_tokens
            if finished:
                elapsed = bar.format_dict["elapsed"] or 1e-9
                bar.set_postfix_str(f"{tokens / elapsed:.1f} tokens/s", refresh=False)
                bar.update(finished)

        yield update
