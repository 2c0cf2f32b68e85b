"""Text to token ids and back."""

from __future__ import annotations

import os
from collections.abc import Sequence

from reprise.tokenizer_files import file_of, load_tokenizer, named_errors, shown

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character (yet)


class Tokenizer:
    """A Hugging Face tokenizer.json, with what tokenizer_config.json beside it says.

    `backend` is the tokenizers library's own; `chat_template` is the Jinja text, or a dict of them by name, as it
    stands in the files; `bos_token_id` and `eos_token_id` are None where the files name none; `notices` says what the
    files ask for that is not done.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = shown(file_of(path))
        self.backend, settings = load_tokenizer(path)
        self.chat_template = settings.chat_template
        self.notices = settings.notices
        self._tokens: dict[int, str] = {}
        self._special = {i for i, token in self.backend.get_added_tokens_decoder().items() if token.special}
        self._choose_ends(settings.bos_token, settings.eos_token, settings.add_bos, settings.add_eos)

    def __len__(self) -> int:
        return self.backend.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """The token ids of a text. BOS and EOS, where the files ask for them, stand at its ends once, also where the
        text (a chat template's) has them already. Raises ValueError for what is no text or holds a lone surrogate.
        """
        if not isinstance(text, str):
            raise ValueError(f"wanted text but got {text!r}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"wanted text that UTF-8 can hold but got a lone surrogate {text[error.start]!a} at {error.start}"
            ) from None
        with named_errors(f"wanted a tokenizer that takes any text but {self._file} does not"):
            ids = self.backend.encode(text, add_special_tokens=self._by_processor).ids
        bos = [] if self.bos_token_id is None else [self.bos_token_id]
        eos = [] if self.eos_token_id is None else [self.eos_token_id]
        if self._by_processor:
            if self._adds_bos and ids[:2] == bos * 2:
                ids = ids[1:]
            if self._adds_eos and ids[-2:] == eos * 2:
                ids = ids[:-1]
            return ids
        if self._adds_bos and ids[:1] != bos:
            ids = bos + ids
        if self._adds_eos and ids[-1:] != eos:
            ids = ids + eos
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def _choose_ends(self, bos: str | None, eos: str | None, add_bos: bool | None, add_eos: bool | None) -> None:
        """Who adds BOS and EOS: tokenizer.json's post-processor, unless tokenizer_config.json differs from it."""
        with named_errors(f"wanted a tokenizer that takes any text but {self._file} does not"):
            ends = self.backend.encode("").ids  # what the post-processor adds to any text
        self.bos_token_id = self.backend.token_to_id(bos) if bos is not None else None
        self.eos_token_id = self.backend.token_to_id(eos) if eos is not None else None
        if bos is None and ends and ends[0] in self._special and ends[0] != self.eos_token_id:
            self.bos_token_id = ends[0]
        by_processor = (
            self.bos_token_id is not None and ends[:1] == [self.bos_token_id],
            self.eos_token_id is not None and ends[-1:] == [self.eos_token_id],
        )
        self._adds_bos = by_processor[0] if add_bos is None else add_bos
        self._adds_eos = by_processor[1] if add_eos is None else add_eos
        self._by_processor = (self._adds_bos, self._adds_eos) == by_processor
        for name, adds, token, token_id in (
            ("bos", self._adds_bos, bos, self.bos_token_id),
            ("eos", self._adds_eos, eos, self.eos_token_id),
        ):
            if adds and token_id is None:
                got = "names none" if token is None else f"{token!r} is not in the vocabulary"
                raise ValueError(f"wanted a {name}_token to add (add_{name}_token) but beside {self._file}, {got}")

    def is_skipped(self, token_id: int, skip_special_tokens: bool = True) -> bool:
        """Whether decode() leaves the token out, whatever stands beside it."""
        return (skip_special_tokens and token_id in self._special) or self.backend.id_to_token(token_id) is None

    def decode_token(self, token_id: int) -> str:
        """One token alone, as it stands beside its logprob."""
        if token_id not in self._tokens:
            self._tokens[token_id] = self.decode([token_id], skip_special_tokens=False)
        return self._tokens[token_id]


# A character has four bytes at most, so tokens that stay broken for this long do so whatever follows.
_CHARACTER_TOKENS = 4


class IncrementalDetokenizer:
    """Turns a growing list of tokens into growing text: the pieces joined equal decoding all tokens at once.

    Text is held back while its end may be part of a character. A decoder may treat the first token of a list specially
    (a leading space), so each piece is the difference between two decodings that start at the same earlier token.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window: list[int] = []  # tokens from the start of the last piece on
        self._done = 0  # of them, those whose text has been returned

    def add(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is incomplete."""
        if self._tokenizer.is_skipped(token_id, self._skip_special_tokens):
            return ""
        self._window.append(token_id)
        piece = self._pending()
        if not piece or piece.endswith(REPLACEMENT):
            return self._broken() if len(self._window) - self._done > 2 * _CHARACTER_TOKENS else ""
        self._window = self._window[self._done :]
        self._done = len(self._window)
        return piece

    def flush(self) -> str:
        """What was held back, once no token follows."""
        piece = self._pending()
        self._done = len(self._window)
        return piece

    def _pending(self) -> str:
        before = self._decode(self._window[: self._done])
        return self._decode(self._window)[len(before) :]

    def _broken(self) -> str:
        """The text of pending tokens that no token to come can mend, which leave the window; empty if there are none.

        A window of any length would be decoded again with every token.
        """
        whole = self._decode(self._window)
        for length in range(_CHARACTER_TOKENS, 2 * _CHARACTER_TOKENS):
            head, tail = self._window[:-length], self._window[-length:]
            starts = (self._decode(tail[: i + 1]) for i in range(length))
            text = self._decode(head)
            if text + self._decode(tail) == whole and all(not s or s.endswith(REPLACEMENT) for s in starts):
                piece = text[len(self._decode(self._window[: self._done])) :]
                self._window, self._done = tail, 0
                return piece
        return ""

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip_special_tokens)
