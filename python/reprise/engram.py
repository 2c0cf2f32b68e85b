"""Engram's compressed vocabulary: token ids that differ only in case, accents or white space share one id.

The C++ engine takes the map as data, handed over by `LLM` or read from `engram_vocabulary.json` beside the checkpoint.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, normalizers

from reprise import _reprise
from reprise.tokenizer_files import TOKENIZER_FILE, has_tokenizer, load_tokenizer, read_json, shown

VOCABULARY_FILE = "engram_vocabulary.json"

# A private-use character that stands for a lone space while the ends are trimmed.
_LONE_SPACE = "\ue000"

_NORMALIZER = normalizers.Sequence(
    [
        normalizers.NFKC(),
        normalizers.NFD(),
        normalizers.StripAccents(),
        normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
        normalizers.Replace(Regex(r"\A \z"), _LONE_SPACE),
        normalizers.Strip(),
        normalizers.Replace(_LONE_SPACE, " "),
    ]
)


def compressed_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """Returns token id -> compressed id for the ids below `vocab_size`, numbered in order of first appearance.

    Raises ValueError when the tokenizer does not know one of these ids.
    """
    ids_by_key: dict[str, int] = {}
    compressed = []
    for token_id in range(vocab_size):
        token = tokenizer.id_to_token(token_id)
        if token is None:
            raise ValueError(
                f"[engram] wanted a tokenizer that knows every id below vocab_size {vocab_size} but got one with "
                f"{tokenizer.get_vocab_size()} tokens that lacks id {token_id}; is it this checkpoint's tokenizer?"
            )
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        # U+FFFD: the token is a piece of a character, and only its own string tells it from other pieces.
        key = token if "\ufffd" in text else _NORMALIZER.normalize_str(text) or text
        compressed.append(ids_by_key.setdefault(key, len(ids_by_key)))
    return compressed


def checkpoint_vocabulary(checkpoint: str | os.PathLike[str]) -> list[int] | None:
    """Computes the map of a checkpoint folder from its tokenizer.json; None for a model without Engram.

    Raises ValueError when a file is missing or the map's size is not the one that the model was trained with.
    """
    folder = Path(os.fsdecode(checkpoint))
    config = _read_config(folder)
    if not config.get("engram_layer_ids"):
        return None
    wanted = config.get("engram_compressed_vocab_size")
    for field in ("vocab_size", "engram_compressed_vocab_size"):
        if not isinstance(config.get(field), int):
            raise ValueError(
                f"[engram] wanted an integer {field} in {shown(folder / 'config.json')} but got {config.get(field)}"
            )
    path = folder / TOKENIZER_FILE
    if not has_tokenizer(folder):
        raise ValueError(
            f"[engram] wanted {shown(path)}, from which an Engram model's vocabulary is made, but there is none"
        )
    try:
        tokenizer, _ = load_tokenizer(folder)
    except ValueError as error:
        raise ValueError(f"[engram] {error}") from error
    vocabulary = compressed_vocabulary(tokenizer, config["vocab_size"])
    got = max(vocabulary, default=-1) + 1
    if got != wanted:
        raise ValueError(
            f"[engram] wanted engram_compressed_vocab_size {wanted} but {shown(path)} gives {got}; "
            "is it this checkpoint's tokenizer?"
        )
    return vocabulary


def prepare_checkpoint(checkpoint: str | os.PathLike[str]) -> Path | None:
    """Writes the map beside the checkpoint, for users of the engine without Python, and returns the file's path.

    Returns None, and writes nothing, for a model without Engram. Raises as `checkpoint_vocabulary` does.
    """
    vocabulary = checkpoint_vocabulary(checkpoint)
    if vocabulary is None:
        return None
    path = Path(os.fsdecode(checkpoint)) / VOCABULARY_FILE
    content = {
        "vocab_size": len(vocabulary),
        "compressed_vocab_size": max(vocabulary) + 1,
        "map": vocabulary,
    }
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(content) + "\n")
        os.replace(partial, path)  # at once: no engine ever reads half a file
    finally:
        partial.unlink(missing_ok=True)
    return path


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not _reprise.stands_at(path):
        raise ValueError(f"[engram] wanted a checkpoint folder but {shown(path)} does not exist")
    try:
        config = read_json(path)
    except ValueError as error:
        raise ValueError(f"[engram] {error}") from error
    text_config = config.get("text_config")
    return config if text_config is None else text_config  # null counts as absent, as in C++
