"""Continues a few prompts with a checkpoint, with the replay off and bounded, and says what it cost.

    python examples/demo.py [CHECKPOINT]

The bundled checkpoint has random weights, so the text is noise; tokens, times and row counts are real.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from reprise import LLM, RequestOutput, SamplingParams

BUNDLED = Path(__file__).resolve().parent.parent / "tests/data/v41-tiny-engram"
PROMPTS = [
    "The replay layers come after the last layer that publishes keys and values.",
    "Once upon a time, in a cache far away, there lived a window of eight tokens.",
    "def replay(rows, window):\n    return rows[-window:]\n",
]


def rows_that_ran(output: RequestOutput) -> int:
    """Prompt rows that ran at least one replay layer: the first one's count, for later layers run no others."""
    return max(output.metrics.replay_rows_by_layer, default=0)


def main() -> None:
    checkpoint = sys.argv[1] if len(sys.argv) > 1 else BUNDLED
    llm = LLM(checkpoint, max_model_len=512, max_num_seqs=len(PROMPTS))
    llm.generate(
        PROMPTS, SamplingParams(max_tokens=2, temperature=0), use_tqdm=False
    )  # the first run pays for warming up
    for mode in ("off", "bounded"):
        params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, replay=mode)
        start = time.perf_counter()
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        print(f"\n=== replay {outputs[0].metrics.replay_mode}")
        for output in outputs:
            completion = output.outputs[0]
            print(f"prompt:    {output.prompt!r}")
            print(f"text:      {completion.text!r}")
            print(f"token ids: {completion.token_ids}")
            print(f"time to first token: {output.metrics.time_to_first_token * 1000:.1f} ms")
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        print(
            f"tokens per second: {tokens / seconds:.1f} ({tokens} tokens of {len(outputs)} requests in {seconds:.3f} s)"
        )
        ran = sum(rows_that_ran(output) for output in outputs)
        rows = sum(output.metrics.prompt_rows for output in outputs)
        print(f"replay: {ran} of {rows} prompt rows ran the replay layers")


if __name__ == "__main__":
    main()
