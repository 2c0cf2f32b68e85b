"""Text, streams of a fixed seed and logprobs: the offline interface in one page.

python examples/generate.py CHECKPOINT
"""

import sys

from reprise import LLM, SamplingParams

llm = LLM(sys.argv[1])

# Several prompts run together; outputs come in the order of the prompts.
for output in llm.generate(["Once upon a time", "The answer is"], SamplingParams(max_tokens=32, temperature=0)):
    print(f"{output.prompt!r} -> {output.outputs[0].text!r} ({output.outputs[0].finish_reason})")

# Token ids in place of text; a seed makes sampling repeatable, alone or among other requests.
prompt = {"prompt_token_ids": llm.get_tokenizer().encode("Once upon a time")}
params = SamplingParams(max_tokens=8, temperature=0.8, top_p=0.95, seed=7, logprobs=3)
completion = llm.generate(prompt, params)[0].outputs[0]
for token_id, entries in zip(completion.token_ids, completion.logprobs, strict=True):
    likeliest = ", ".join(f"{entry.decoded_token!r} {entry.logprob:.2f}" for entry in entries.values())
    print(f"{token_id:>6}  {likeliest}")

# The replay mode can differ per request; "exact" gives what "off" gives and runs fewer rows.
for mode in ("off", "exact", "bounded"):
    output = llm.generate("Once upon a time, " * 8, SamplingParams(max_tokens=8, temperature=0, replay=mode))[0]
    print(f"{mode:>8}: {output.metrics.replay_rows_run} replay rows, {output.outputs[0].token_ids}")
