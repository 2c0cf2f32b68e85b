"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character (yet)


class Tokenizer:
    """A Hugging Face tokenizer.json."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise ValueError(f"wanted a tokenizer.json but found none at {file}")
        try:
            self.backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises plain Exception
            raise ValueError(f"wanted a tokenizer that can be read but got {error} from {file}") from error
        self._tokens: dict[int, str] = {}
        self._special = {i for i, token in self.backend.get_added_tokens_decoder().items() if token.special}

    def __len__(self) -> int:
        return self.backend.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text).ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

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
