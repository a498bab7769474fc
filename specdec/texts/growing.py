"""The pieces in which a text is shown while it is decoded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from specdec import tasks

# What later tokens may change at the end of a text: bytes that are no whole character yet, and a
# space that a tokenizer's clean-up removes before punctuation or a contraction, as in "do n't".
_UNSETTLED = re.compile(r"(?: (?:'|n'?|'[vr])?)?\ufffd*\Z")


class Growing:
    """Texts of a vocabulary, piece by piece while they are decoded.

    The end of a text that later tokens may change is held back, so that no piece ends within a
    character. After a run of bytes that are no text, a tokenizer may take back all of them.

    Args:
      vocabulary: any vocabulary.

    Example:

    >>> vocabulary = tasks.Bytes(0).load()
    >>> ids = vocabulary.encode("Die Käse")
    >>> list(Growing(vocabulary).pieces([ids[:3], ids[:6], ids]))
    ['Die', ' K', 'äse']
    """

    def __init__(self, vocabulary: tasks.LoadedVocabulary):
        self._vocabulary, self._single_bytes = vocabulary, tasks.byte_ids(vocabulary)

    def pieces(self, outputs: Iterable[Sequence[int]], source: str = "") -> Iterator[str]:
        """Yields what each output adds to the text; all pieces together are the last text.

        Args:
          outputs: token ids, each longer than those before it, and beginning with them.
          source: the text of the input.
        """
        ids: Sequence[int] = ()
        written = ""
        for ids in outputs:
            end = len(ids)
            while end and ids[end - 1] in self._single_bytes:
                end -= 1
            settled = _UNSETTLED.sub("", tasks.detokenize(self._vocabulary, ids[:end], source))
            if len(settled) > len(written) and settled.startswith(written):
                yield settled[len(written) :]
                written = settled
        text = tasks.detokenize(self._vocabulary, ids, source)
        if not text.startswith(written):
            raise ValueError(f"the text {text!r:.60} does not begin with {written!r:.60}")
        if text != written:
            yield text[len(written) :]
