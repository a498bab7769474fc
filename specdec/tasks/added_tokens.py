"""Tokens that a tokenizer adds to its model's pieces, and how texts are split at them.

The rules are those of transformers' tokenizers. Added tokens are found before the model cuts the
rest of a text into pieces. They are found everywhere, even inside a word.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence


@dataclasses.dataclass(frozen=True)
class AddedToken:
    """One added token; the flags have transformers' names."""

    id: int  # the token's id
    content: str  # its text
    lstrip: bool = False  # whether white space to its left belongs to it
    rstrip: bool = False  # whether white space to its right belongs to it
    single_word: bool = False  # whether it is found only between spaces
    special: bool = False  # whether transformers leaves it out of texts with `skip_special_tokens`


@dataclasses.dataclass(frozen=True)
class Framing:
    """The settings of a tokenizer with byte-pair merges that say how an input begins and ends."""

    # the special tokens by transformers' names, such as ("eos_token", "</s>")
    names: tuple[tuple[str, str], ...] = ()
    continued: bool = True  # whether inputs are prompts, which a decoder-only model continues
    # whether an input begins with `bos_token`; None if `tokenizer.json` says it
    add_bos: bool | None = None
    # whether an input ends in `eos_token`; None if `tokenizer.json` says it
    add_eos: bool | None = None
    # whether a byte-level tokenizer puts a space before a text; None for what its file says
    prefix_space: bool | None = None
    chat_template: str | None = None  # the Jinja template of conversations; None if there is none
    chat_file: str = ""  # the file that has the template, for errors
    # whether each input is a user's message, which the template turns into a prompt
    chat: bool = False


@dataclasses.dataclass(frozen=True)
class Tokenization:
    """The part of a tokenizer that is not in its SentencePiece model or `tokenizer.json`."""

    # the tokens in addition to the model's pieces, including sentinels
    added: tuple[AddedToken, ...] = ()
    # whether text after an added token begins with the mark of a space, as in transformers before
    # 4.31 and by default
    legacy: bool = True
    clean_up: bool = False  # whether spaces before punctuation are removed from decoded texts
    framing: Framing | None = None  # how inputs begin and end; None for a T5's, which end in EOS


def agree(tokens: Iterable[AddedToken], others: Iterable[AddedToken]) -> bool:
    """Returns whether two lists of added tokens give each id one text, and each text one id.

    Either list may lack tokens of the other."""
    tokens, others = tuple(tokens), tuple(others)
    contents = {token.id: token.content for token in tokens}
    ids = {token.content: token.id for token in tokens}
    return all(
        contents.get(token.id, token.content) == token.content
        and ids.get(token.content, token.id) == token.id
        for token in others
    )


_CLEANED = (" .", " ?", " !", " ,", " n't", " 'm", " 's", " 've", " 're")


def cleaned_up(text: str) -> str:
    """Removes spaces before punctuation, in the order of transformers."""
    for spaced in _CLEANED:
        text = text.replace(spaced, spaced[1:])
        if spaced == " ,":
            text = text.replace(" ' ", "'")
    return text


def split(text: str, tokens: Sequence[AddedToken]) -> Iterator[str | AddedToken]:
    """Yields the added tokens of a text and the text between them, in their order.

    Of several possible tokens the leftmost one is taken, and the longest if they begin together.
    """
    by_content = {token.content: token for token in tokens}
    longest_first = sorted(by_content, key=len, reverse=True)
    parts, end = [], 0
    for match in re.finditer("|".join(map(re.escape, longest_first)), text) if tokens else ():
        parts += [text[end : match.start()], match[0]]
        end = match.end()
    parts = [part for part in (*parts, text[end:]) if part]
    for index, part in enumerate(parts):
        if part in by_content:
            _trim(parts, index, by_content[part])
    return (by_content.get(part, part) for part in parts if part)


def _trim(parts: list[str], index: int, token: AddedToken) -> None:
    """Applies the flags of `token`, which is `parts[index]`, to the parts before and after it.

    transformers does this even if these parts are added tokens. White space that is an added token
    therefore disappears next to a token that includes white space.
    """
    before = parts[index - 1] if index else ""
    after = parts[index + 1] if index + 1 < len(parts) else ""
    if token.rstrip and after:
        parts[index + 1] = after.lstrip()
    if token.lstrip and before:
        parts[index - 1] = before.rstrip()
    if token.single_word and before and before[-1] != " ":
        parts[index - 1] += token.content
        parts[index] = ""
    elif token.single_word and after and after[0] != " ":
        parts[index + 1] = token.content + parts[index + 1]
        parts[index] = ""
