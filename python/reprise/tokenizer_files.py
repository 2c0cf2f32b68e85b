"""What the files of a tokenizer say: tokenizer.json, and tokenizer_config.json and its companions beside it.

What an inference engine does with the state of a tokenizer.json:

    truncation, padding   switched off: lengths are the engine's to judge, and a prompt is never cut or filled
    model.dropout         switched off: it makes training see a text in different pieces
    added_tokens          kept, and joined by those of tokenizer_config.json, whose flags rule
    post_processor        adds BOS and EOS unless tokenizer_config.json says otherwise (tokenizer.py)
    all else              as it stands: normalizer, pre_tokenizer, model, decoder
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from reprise import _reprise

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_SPECIAL_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("lstrip", "rstrip", "normalized", "single_word", "special")


@dataclass
class TokenizerSettings:
    """What stands beside a tokenizer.json; None where nothing is said."""

    add_bos: bool | None = None
    add_eos: bool | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    chat_template: str | dict[str, str] | None = None  # Jinja; by name where there are several
    notices: list[str] = field(default_factory=list)  # what is not done as the files say


def shown(path: str | os.PathLike[str]) -> str:
    """A path as a message may hold it: bytes that are no UTF-8 are escaped."""
    return os.fsencode(path).decode(errors="backslashreplace")


def file_of(path: str | os.PathLike[str]) -> Path:
    """The tokenizer.json that a path names, itself or as its folder."""
    path = Path(os.fsdecode(path))
    return path / TOKENIZER_FILE if path.is_dir() else path


def has_tokenizer(folder: str | os.PathLike[str]) -> bool:
    """Whether a tokenizer.json stands in the folder, readable or not."""
    return _reprise.stands_at(Path(os.fsdecode(folder)) / TOKENIZER_FILE)


def load_tokenizer(path: str | os.PathLike[str]) -> tuple[tokenizers.Tokenizer, TokenizerSettings]:
    """Reads a tokenizer.json, or that of a folder, and what stands beside it.

    Raises ValueError that names the file and what is wrong with it.
    """
    file = file_of(path)
    if not _reprise.stands_at(file):
        raise ValueError(f"wanted a {TOKENIZER_FILE} but found none at {shown(file)}")
    text = read_text(file)
    with named_errors(f"wanted a tokenizer in {shown(file)} but could not read it"):
        backend = tokenizers.Tokenizer.from_str(text)
    backend.no_truncation()
    backend.no_padding()
    if getattr(backend.model, "dropout", None) is not None:
        backend.model.dropout = None
    return backend, _apply_config(backend, file.parent)


@contextlib.contextmanager
def named_errors(message: str) -> Iterator[None]:
    """Turns what the tokenizers library raises, a PanicException that is no Exception among it, into ValueError."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{message}: {error}") from error


def read_text(path: Path) -> str:
    """A text file. Raises ValueError that names it and says what stands there instead."""
    try:
        return _reprise.read_file(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"[{shown(path)}] wanted text in UTF-8 but got byte 0x{error.object[error.start]:02x} at {error.start}"
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ValueError that names it."""
    try:
        content = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"[{shown(path)}] wanted JSON but got: {error or type(error).__name__}") from None
    if not isinstance(content, dict):
        raise ValueError(f"[{shown(path)}] wanted a JSON object but got {type(content).__name__}")
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # half a pair of \\u escapes
        raise ValueError(
            f"[{shown(path)}] wanted text but got a lone surrogate {error.object[error.start]!a}"
        ) from None
    return content


def _apply_config(backend: tokenizers.Tokenizer, folder: Path) -> TokenizerSettings:
    """Gives the tokenizer the tokens that its companions list, and returns the other settings."""
    path = folder / CONFIG_FILE
    config = read_json(path) if _reprise.stands_at(path) else {}
    older = folder / "special_tokens_map.json"  # its entries were moved into tokenizer_config.json
    if _reprise.stands_at(older):
        config = {name: value for name, value in read_json(older).items() if name in _SPECIAL_TOKENS} | config
    settings = TokenizerSettings(
        add_bos=_flag(config, "add_bos_token", path),
        add_eos=_flag(config, "add_eos_token", path),
        bos_token=_token(config.get("bos_token"), "bos_token", path),
        eos_token=_token(config.get("eos_token"), "eos_token", path),
        chat_template=_chat_template(config, folder),
    )
    listed = _listed_tokens(config, folder)
    names = [_token(config.get(name), name, path) for name in _SPECIAL_TOKENS] + _special_list(config, path)
    special = [name for name in names if name is not None and backend.token_to_id(name) is not None]
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    tokens = [token for _, token in sorted(listed.items(), key=lambda entry: entry[0])]
    seen = added | {token.content for token in tokens}
    tokens += [AddedToken(name, special=True, normalized=False) for name in dict.fromkeys(special) if name not in seen]
    with named_errors(f"[{shown(path)}] wanted tokens that can be added"):
        backend.add_tokens(tokens)
    for token_id, token in listed.items():
        if backend.token_to_id(token.content) != token_id:
            raise ValueError(
                f"[{shown(path)}] wanted token {token.content!r} of id {token_id}, as it says, but {TOKENIZER_FILE} "
                f"makes it {backend.token_to_id(token.content)}"
            )
    if _flag(config, "split_special_tokens", path):
        backend.encode_special_tokens = True
    prefix = _flag(config, "add_prefix_space", path)
    if prefix is not None and getattr(backend.pre_tokenizer, "add_prefix_space", prefix) != prefix:
        backend.pre_tokenizer.add_prefix_space = prefix
    if _flag(config, "clean_up_tokenization_spaces", path):
        settings.notices.append(f"{CONFIG_FILE} asks for clean_up_tokenization_spaces, which is not applied")
    return settings


def _flag(config: dict[str, Any], name: str, path: Path) -> bool | None:
    value = config.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise ValueError(f"[{shown(path)}] wanted {name} to be true or false but got {value!r}")


def _token(value: object, name: str, path: Path) -> str | None:
    """A token's text, which stands by itself or as a dict of an AddedToken's fields."""
    content = value.get("content") if isinstance(value, dict) else value
    if value is None or (isinstance(content, str) and content):
        return content
    raise ValueError(f"[{shown(path)}] wanted {name} to be a token's text but got {value!r}")


def _special_list(config: dict[str, Any], path: Path) -> list[str | None]:
    names: list[str | None] = []
    for field_name in _SPECIAL_LISTS:
        value = config.get(field_name) or []
        if isinstance(value, dict):  # name -> token
            value = list(value.values())
        if not isinstance(value, list):
            raise ValueError(f"[{shown(path)}] wanted {field_name} to be a list of tokens but got {value!r}")
        names += [_token(token, field_name, path) for token in value]
    return names


def _listed_tokens(config: dict[str, Any], folder: Path) -> dict[int, AddedToken]:
    """Tokens that are given with their ids: in added_tokens.json by text, in tokenizer_config.json with flags."""
    tokens: dict[int, AddedToken] = {}
    path = folder / "added_tokens.json"
    if _reprise.stands_at(path):
        for content, token_id in read_json(path).items():
            if not content or not _is_id(token_id):
                raise ValueError(f"[{shown(path)}] wanted ids of tokens but got {content!r}: {token_id!r}")
            tokens[token_id] = AddedToken(content)
    path = folder / CONFIG_FILE
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise ValueError(f"[{shown(path)}] wanted added_tokens_decoder to be an object but got {decoder!r}")
    for key, entry in decoder.items():
        where = f"added_tokens_decoder[{key!r}]"
        if not (key.isascii() and key.isdigit() and _is_id(int(key[:12]))) or not isinstance(entry, dict):
            raise ValueError(
                f"[{shown(path)}] wanted ids and tokens in added_tokens_decoder but got {key!r}: {entry!r}"
            )
        content = _token(entry, where, path)
        flags = {name: _flag(entry, name, path) for name in _FLAGS if entry.get(name) is not None}
        tokens[int(key)] = AddedToken(content, **flags)
    return tokens


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _chat_template(config: dict[str, Any], folder: Path) -> str | dict[str, str] | None:
    """The template of a file of its own, else of tokenizer_config.json; by name where several stand there."""
    path = folder / "chat_template.jinja"
    if _reprise.stands_at(path):
        return read_text(path)
    template = config.get("chat_template")
    if template is None or isinstance(template, str):
        return template
    if isinstance(template, list) and all(
        isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("template"), str)
        for one in template
    ):
        return {one["name"]: one["template"] for one in template}
    raise ValueError(f"[{shown(folder / CONFIG_FILE)}] wanted chat_template to be text but got {template!r}")
