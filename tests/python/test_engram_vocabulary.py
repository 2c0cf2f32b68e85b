"""Engram's compressed vocabulary: which tokens share an id, by hand, and the file that `reprise prepare` writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from reference import deepseek_v41
from reprise.engram import checkpoint_vocabulary, compressed_vocabulary, prepare_checkpoint


def byte_level_alphabet() -> dict[int, str]:
    """Byte -> the character that byte-level BPE writes for it (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def tokenizer_of(*tokens: str | bytes) -> Tokenizer:
    """A byte-level tokenizer whose token i decodes to tokens[i]."""
    alphabet = byte_level_alphabet()
    raw = [token.encode() if isinstance(token, str) else token for token in tokens]
    vocabulary = {"".join(alphabet[byte] for byte in token): i for i, token in enumerate(raw)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param(["b", "a", "c"], [0, 1, 2], id="numbered by first appearance"),
        pytest.param(["Ab", "ab", "AB", "aB", "b"], [0, 0, 0, 0, 1], id="case"),
        pytest.param(["É", "e", "é", "ẽ", "E", "ñ", "n"], [0, 0, 0, 0, 0, 1, 1], id="accents"),
        pytest.param(["e", "e\u0301", "\u0301"], [0, 0, 1], id="a lone combining mark keeps its text"),
        pytest.param(["ｱ", "ア", "Ａ", "a", "ﬁ", "fi", "①", "1"], [0, 0, 1, 1, 2, 2, 3, 3], id="NFKC"),
        pytest.param(["ẞ", "ß", "ss"], [0, 0, 1], id="lowercase is not case folding"),
        pytest.param(["a", " a", "a ", "\ta\n", "a b", "a\t\r\n b"], [0, 0, 0, 0, 1, 1], id="white space"),
        pytest.param([" ", "  ", "\n", "\t \r\n", "\u00a0"], [0, 0, 0, 0, 0], id="white space alone is one space"),
        pytest.param(["\u2003a", "a", "\u3000"], [0, 0, 1], id="wide spaces are NFKC spaces"),
        pytest.param(["\x0b", "\x0c", " ", "\x0ba"], [0, 1, 2, 3], id="trimmed away: the text itself"),
        pytest.param([b"\xc3", b"\xa9", "é", b"\xc3a", b"\xc3A"], [0, 1, 2, 3, 4], id="pieces of characters"),
        pytest.param([b"\xc3", "Ã"], [0, 1], id="a piece and the text it looks like"),
    ],
)
def test_which_tokens_share_an_id(tokens: list[str | bytes], expected: list[int]) -> None:
    assert compressed_vocabulary(tokenizer_of(*tokens), len(tokens)) == expected


def test_special_tokens_are_decoded_as_text() -> None:
    tokenizer = tokenizer_of("<S>", "a")
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    assert compressed_vocabulary(tokenizer, 4) == [0, 1, 0, 2]


def test_only_ids_below_vocab_size_count() -> None:
    assert compressed_vocabulary(tokenizer_of("a", "A", "b"), 2) == [0, 0]


def test_an_id_beyond_the_tokenizer_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"vocab_size 4 but got one with 3 tokens that lacks id 3"):
        compressed_vocabulary(tokenizer_of("a", "A", "b"), 4)


@pytest.mark.parametrize("name", ["v41-tiny-engram", "v41-tiny-quant"])
def test_golden_vocabulary(data_dir: Path, name: str) -> None:
    vocabulary = checkpoint_vocabulary(data_dir / name)
    assert len(vocabulary) == 288
    assert sorted(set(vocabulary)) == list(range(242))
    tokenizer = Tokenizer.from_file(str(data_dir / name / "tokenizer.json"))
    assert vocabulary == deepseek_v41.compressed_vocabulary(tokenizer, 288).tolist()


@pytest.fixture
def checkpoint(data_dir: Path, tmp_path: Path) -> Path:
    """A copy of the Engram checkpoint's small files."""
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(data_dir / "v41-tiny-engram" / name, tmp_path / name)
    return tmp_path


def edit_config(checkpoint: Path, **fields: object) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    config["text_config"].update(fields)
    (checkpoint / "config.json").write_text(json.dumps(config))


def test_prepare_writes_the_map_beside_the_checkpoint(checkpoint: Path) -> None:
    path = prepare_checkpoint(checkpoint)
    assert path == checkpoint / "engram_vocabulary.json"
    content = json.loads(path.read_text())
    assert content == {"vocab_size": 288, "compressed_vocab_size": 242, "map": checkpoint_vocabulary(checkpoint)}
    assert prepare_checkpoint(str(checkpoint)) == path  # again, from a string, over the old file
    assert sorted(file.name for file in checkpoint.iterdir()) == [
        "config.json",
        "engram_vocabulary.json",
        "tokenizer.json",
    ]


def test_prepare_has_nothing_to_do_without_engram(checkpoint: Path) -> None:
    edit_config(checkpoint, engram_layer_ids=[])
    (checkpoint / "tokenizer.json").unlink()
    assert prepare_checkpoint(checkpoint) is None
    assert [file.name for file in checkpoint.iterdir()] == ["config.json"]


def test_a_null_text_config_is_none(checkpoint: Path) -> None:
    whole = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(whole.pop("text_config") | {"text_config": None}))
    assert max(checkpoint_vocabulary(checkpoint)) == 241


def test_prepare_says_what_is_wrong_and_writes_nothing(checkpoint: Path) -> None:
    edit_config(checkpoint, engram_compressed_vocab_size=243)
    with pytest.raises(ValueError, match=r"wanted engram_compressed_vocab_size 243 but .*tokenizer\.json gives 242"):
        prepare_checkpoint(checkpoint)
    edit_config(checkpoint, engram_compressed_vocab_size=242, vocab_size=289)
    with pytest.raises(ValueError, match=r"below vocab_size 289 but got one with 288 tokens"):
        prepare_checkpoint(checkpoint)
    edit_config(checkpoint, vocab_size=None)
    with pytest.raises(ValueError, match=r"wanted an integer vocab_size in .*config\.json but got None"):
        prepare_checkpoint(checkpoint)
    edit_config(checkpoint, vocab_size=288)
    (checkpoint / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"wanted a tokenizer in .*tokenizer\.json but could not read it"):
        prepare_checkpoint(checkpoint)
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"wanted .*tokenizer\.json.* but there is none"):
        prepare_checkpoint(checkpoint)
    assert not (checkpoint / "engram_vocabulary.json").exists()
    (checkpoint / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json\] wanted JSON but got"):
        prepare_checkpoint(checkpoint)
    (checkpoint / "config.json").unlink()
    with pytest.raises(ValueError, match=r"wanted a checkpoint folder but .*config\.json does not exist"):
        prepare_checkpoint(checkpoint)
