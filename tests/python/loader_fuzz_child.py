"""Loads damaged checkpoints for test_loader_fuzz.py: DATA TMP SEED FIRST LAST.

Prints the number of each mutation before it is tried, and at the end a JSON object that counts what came of them.
"""

from __future__ import annotations

import collections
import copy
import json
import random
import resource
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import reprise
from reprise.tokenizer import Tokenizer

SECONDS = 30  # of one checkpoint
BYTES = 6 << 30  # of address space

INTEGERS = [0, 1, -1, 2, 3, 7, 16, 255, 1000, 4096, 65536, 2**20]
INTEGERS += [2**31 - 1, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64, 10**30]
NUMBERS = [0.0, 1e-320, 1e-40, 1e-20, 0.5, 1.0, 1.5, 1e20, 3.4e38, 1e39, 1e308, -1.0]
OTHERS: list[Any] = [
    None,
    True,
    False,
    "",
    "yarn",
    "x" * 1000,
    "\ud800",
    "\x00",
    [],
    [0],
    [1, 2],
    [[]],
    {},
    {"main": {}},
]


def some_value(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(5)
    if kind == 0 or (kind == 4 and depth > 2):
        return draw.choice(INTEGERS)
    if kind == 1:
        return draw.choice(NUMBERS)
    if kind == 2:
        return copy.deepcopy(draw.choice(OTHERS))  # what is changed later stays what it is for others
    if kind == 3:
        return [draw.choice(INTEGERS) for _ in range(draw.randrange(12))]
    return {
        draw.choice(["main", "compress", "factor", "rope_type", "id"]): some_value(draw, depth + 1) for _ in range(3)
    }


def change_json(content: Any, draw: random.Random) -> None:
    """Changes a value somewhere in the tree: another one, none at all, a number nearby, a field more."""
    place = content
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and draw.random() < 0.8:
            place = place[key]
            continue
        kind = draw.randrange(5)
        if kind == 0:
            del place[key]
        elif kind == 1 and isinstance(place[key], int | float) and not isinstance(place[key], bool):
            place[key] += draw.choice([-1, 1, 32])
        elif kind == 2 and isinstance(place, dict):
            place[draw.choice(["extra", "n_group", "gate_temp", "rope_scaling", "engram_pad_id"])] = some_value(draw)
        else:
            place[key] = some_value(draw)
        return


def change_bytes(data: bytes, draw: random.Random) -> bytes:
    kind = draw.randrange(4)
    if kind == 0:
        return data[: draw.randrange(len(data) + 1)]
    if kind == 1:
        return data + draw.randbytes(draw.randrange(1, 100))
    at = draw.randrange(min(len(data), 50_000))
    length = draw.choice([1, 1, 2, 8, 100])
    return data[:at] + draw.randbytes(length) + data[at + (0 if kind == 2 else length) :]


def json_file(folder: Path, name: str, draw: random.Random) -> None:
    content = json.loads((folder / name).read_text())
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        change_json(content, draw)
    (folder / name).write_text(json.dumps(content, ensure_ascii=True))


def config_field(folder: Path, draw: random.Random) -> None:
    """One field of the text backbone at another value: most get past the first check and meet the next."""
    content = json.loads((folder / "config.json").read_text())
    text = content["text_config"]
    field = draw.choice(sorted(text))
    old = text[field]
    if isinstance(old, int) and not isinstance(old, bool):
        text[field] = draw.choice([*INTEGERS, old + 1, old - 1, old * 2, old // 2])
    elif isinstance(old, float):
        text[field] = draw.choice(NUMBERS)
    elif isinstance(old, list) and old and draw.random() < 0.8:
        old[draw.randrange(len(old))] = draw.choice([*INTEGERS, 0, 1, 2, 4, 5, 9])
    else:
        text[field] = some_value(draw)
    (folder / "config.json").write_text(json.dumps(content))


def header(folder: Path, draw: random.Random) -> None:
    file = folder / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    text, rest = data[8 : 8 + length], data[8 + length :]
    if draw.random() < 0.5:
        content = json.loads(text)
        for _ in range(draw.choice([1, 1, 3])):
            change_json(content, draw)
        text = json.dumps(content).encode()
    else:
        text = change_bytes(text, draw)
    length = len(text)
    if draw.random() < 0.2:
        length = draw.choice([0, 1, abs(length - 1), length + 1, 2**40, 2**63, 2**64 - 1])
    file.write_bytes(length.to_bytes(8, "little") + text + rest)


def weights(folder: Path, draw: random.Random) -> None:
    """Bytes of the tensors themselves: any value is a weight, unless it is not finite."""
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    length = int.from_bytes(data[:8], "little")
    for _ in range(draw.choice([1, 10])):
        at = draw.randrange(8 + length, len(data) - 8)
        data[at : at + 8] = draw.choice([b"\xff" * 8, b"\x7f" * 8, b"\0" * 8, draw.randbytes(8)])
    file.write_bytes(data)


def shards(folder: Path, draw: random.Random) -> None:
    """The weights as one shard behind an index that is then damaged."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    names = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    file.rename(folder / "one.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, "one.safetensors")}))
    if draw.random() < 0.7:
        json_file(folder, index.name, draw)
    else:
        index.write_bytes(change_bytes(index.read_bytes(), draw))


def any_bytes(folder: Path, draw: random.Random) -> None:
    file = draw.choice(sorted(folder.iterdir()))
    file.write_bytes(change_bytes(file.read_bytes(), draw))


def generation(folder: Path, draw: random.Random) -> None:
    content: dict[str, Any] = {"eos_token_id": [1, 2], "do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 5}
    content |= {"max_new_tokens": 5, "repetition_penalty": 1.0, "stop_strings": ["x"]}
    (folder / "generation_config.json").write_text(json.dumps(content))
    json_file(folder, "generation_config.json", draw)


def tokenizer(folder: Path, draw: random.Random) -> None:
    settings = {"add_bos_token": False, "bos_token": {"content": "a"}, "added_tokens_decoder": {"64": {"content": "a"}}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": "x"}))
    json_file(folder, draw.choice(["tokenizer.json", "tokenizer_config.json"]), draw)


MUTATIONS: list[tuple[int, Callable[[Path, random.Random], None]]] = [
    (6, config_field),
    (3, lambda folder, draw: json_file(folder, "config.json", draw)),
    (4, header),
    (1, weights),
    (2, shards),
    (2, any_bytes),
    (1, generation),
    (1, tokenizer),
]


def load(folder: Path) -> str:
    """What became of a checkpoint; anything but these words, a value or memory error is a fault."""
    options = {"max_num_seqs": 2, "max_num_batched_tokens": 16, "num_threads": 1, "kv_cache_memory": 64 << 20}
    try:
        if (folder / "tokenizer.json").exists():
            Tokenizer(folder).encode("hello")
        llm = reprise.LLM(folder, use_tqdm=False, **options)
        output = llm.generate([[5, 6, 7]], reprise.SamplingParams(max_tokens=3, temperature=0), use_tqdm=False)[0]
        return "ran, then ended with an error" if output.error else "loaded and ran"
    except ValueError as error:
        assert not isinstance(error, UnicodeError), error
        assert str(error).strip(), "an error without words"
        return "refused"
    except RuntimeError as error:
        if "DefaultCPUAllocator" in str(error):
            raise
        return f"RuntimeError {str(error)[:80]}"


def main(data: str, tmp: str, seed: str, first: str, last: str) -> None:
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process also where Python's handlers do not run
    counts: collections.Counter[str] = collections.Counter()
    for number in range(int(first), int(last)):
        draw = random.Random(f"{seed} {number}")
        folder = Path(tmp) / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        source = Path(data) / draw.choice(["v41-tiny", "v41-tiny-quant", "v41-tiny-engram"])
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(source / name, folder / name)
        shutil.copyfile(Path(data) / "v41-tiny-engram" / "tokenizer.json", folder / "tokenizer.json")
        mutation = draw.choices([m for _, m in MUTATIONS], [weight for weight, _ in MUTATIONS])[0]
        print(number, source.name, getattr(mutation, "__name__", ""), flush=True)
        mutation(folder, draw)
        signal.alarm(SECONDS)
        counts[load(folder)] += 1
        signal.alarm(0)
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
