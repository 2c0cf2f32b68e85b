"""Runs the same prompts with the replay off, exact and bounded, and shows what each mode computed and what came of it.

    python examples/demo.py [CHECKPOINT]

Without CHECKPOINT it takes the trained one that is bundled, else the one with random weights.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reprise import LLM, RequestOutput, SamplingParams

DATA = Path(__file__).resolve().parent.parent / "tests/data"
TRAINED = DATA / "v41-trained"
RANDOM = DATA / "v41-tiny-engram"
PROMPTS = [
    "The replay layers come after the last layer that publishes keys and values. " * 4,
    "Once upon a time, in a cache far away, there lived a window of eight tokens. " * 4,
    "def replay(rows, window):\n    return rows[-window:]\n\n" * 6,
]
MODES = {
    "off": "every row of the prompt runs the replay layers",
    "exact": "only the rows that the last row depends on: the same tokens",
    "bounded": "only the last window of rows: an approximation",
}
REPEATS = 3


def run(llm: LLM, prompt: str, mode: str) -> RequestOutput:
    """The fastest of a few runs."""
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, replay=mode)
    outputs = [llm.generate(prompt, params, use_tqdm=False)[0] for _ in range(REPEATS)]
    return min(outputs, key=lambda output: output.metrics.time_to_first_token)


def compare(tokens: list[int], plain: list[int]) -> str:
    if tokens == plain:
        return f"all {len(plain)} equal to off"
    same = next(i for i, pair in enumerate(zip(tokens, plain, strict=True)) if pair[0] != pair[1])
    return f"the first {same} of {len(plain)} equal to off"


def show(text: str, width: int) -> str:
    text = repr(text)
    return text if len(text) <= width else text[: width - 4] + "...'"


def main() -> None:
    bundled = TRAINED if TRAINED.exists() else RANDOM
    checkpoint = Path(sys.argv[1]) if len(sys.argv) > 1 else bundled
    llm = LLM(checkpoint, max_model_len=1024, max_num_seqs=1, use_tqdm=False)
    print(f"Checkpoint: {checkpoint.name}")
    if checkpoint.resolve() == RANDOM:
        print("Its weights are random: the text means nothing. Tokens, rows and times are real.")
    print("\nWhat runs when a prompt comes in, before its first new token (greedy, one prompt at a time):")
    for mode, meaning in MODES.items():
        print(f"  {mode:<8} {meaning}")
    for prompt in PROMPTS:
        outputs = {mode: run(llm, prompt, mode) for mode in MODES}
        plain = outputs["off"]
        print(f"\n{show(prompt, 80)}, {plain.metrics.prompt_rows} tokens")
        print(f"  {'':<8} {'replay rows run':>18} {'first token after':>18}   new tokens")
        for mode, output in outputs.items():
            rows = f"{output.metrics.replay_rows_run} of {plain.metrics.replay_rows_run}"
            time = f"{output.metrics.time_to_first_token * 1000:.1f} ms"
            tokens = compare(output.outputs[0].token_ids, plain.outputs[0].token_ids)
            print(f"  {mode:<8} {rows:>18} {time:>18}   {tokens if output is not plain else ''}".rstrip())
        texts = {mode: output.outputs[0].text for mode, output in outputs.items()}
        for mode, text in texts.items():
            if mode == "off" or text != texts["off"]:
                print(f"  text, {mode}: {show(text, 80)}")
    print(f"\nRows are summed over the replay layers; times are the best of {REPEATS} runs.")


if __name__ == "__main__":
    main()
