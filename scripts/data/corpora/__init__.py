"""Generated corpora of unlimited size, of which `demo/texts` has the first texts.

They are English sentences with German translations, articles with highlights, English with
corrected errors, questions on articles, and articles to continue. Every example is a function of
(task, split, index). Therefore any split can be continued, and an index is enough to resume.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

from corpora import articles, corrections, translation

# The prefix of a task's inputs, and the function (split, index) -> (source, target).
GENERATORS: Mapping[str, tuple[str, Callable[[str, int], tuple[str, str]]]] = {
    "specdec_ende": ("translate English to German: ", translation.example),
    "specdec_highlights": ("summarize: ", articles.highlighted),
    "specdec_gec": ("correct: ", corrections.example),
    "specdec_qa": ("question: ", articles.asked),
    "specdec_articles": ("", articles.continued),
}


def examples(name: str, split: str, start: int = 0) -> Iterator[tuple[str, str]]:
    """Yields the (input, target) pairs of a task's split without end, from index `start` on.

    Example i is computed from (name, split, i) alone.
    """
    prefix, generate = GENERATORS[name]
    for index in itertools.count(start):
        source, target = generate(split, index)
        yield prefix + source, target
