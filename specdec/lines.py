"""One rule for the lines of a text, wherever it is from: a file, standard input or a flag.

A line ends in LF or in CRLF, which are not part of its text. Any other CR is a space. A byte-order
mark at the begin of a file is not part of its text either.
"""

from __future__ import annotations

import codecs

BOM = "\ufeff"


def text_of(line: str, first: bool) -> str:
    """Returns the text of a line that may have its ending; only the first one has a mark."""
    line = line.removesuffix("\n").removesuffix("\r").replace("\r", " ")
    return line.removeprefix(BOM) if first else line


def text_of_bytes(line: bytes, first: bool) -> bytes:
    """Does what `text_of` does, for UTF-8."""
    line = line.removesuffix(b"\n").removesuffix(b"\r").replace(b"\r", b" ")
    return line.removeprefix(codecs.BOM_UTF8) if first else line


def text_of_flag(text: str) -> str:
    """Returns the text of a flag, which may have several lines."""
    return "\n".join(text_of(line, not i) for i, line in enumerate(text.split("\n")))
