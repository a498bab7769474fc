"""Generated corpora of unlimited size that need no download.

They are English sentences with German translations, articles with highlights, English with
corrected errors, questions on articles, and articles to continue. Every example is a function of
(task, split, seed, index). Therefore train is unlimited, an index is enough to resume, and splits
do not share seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from specdec.tasks.corpora import articles, corrections, translation

# How many examples a split has. Nobody gets to the end of train: its indices are those of `Dice`.
SIZES: Mapping[str, int] = {"train": 2**48, "validation": 500, "test": 500}
PREFIXES: Mapping[str, str] = {
    "specdec_ende": "translate English to German: ",
    "specdec_highlights": "summarize: ",
    "specdec_gec": "correct: ",
    "specdec_qa": "question: ",
    "specdec_articles": "",
}
_GENERATORS: Mapping[str, Callable[[str, int, int], tuple[str, str]]] = {
    "specdec_ende": translation.example,
    "specdec_highlights": articles.highlighted,
    "specdec_gec": corrections.example,
    "specdec_qa": articles.asked,
    "specdec_articles": articles.continued,
}


def generator(name: str) -> Callable[[str, int, int], tuple[str, str]]:
    """Returns the function (split, index, seed) -> (source, target) of a task, without its prefix.

    Raises:
      ValueError: there is no such task.
    """
    if name not in _GENERATORS:
        raise ValueError(f"no synthetic task is named {name!r}; there are {', '.join(PREFIXES)}")
    return _GENERATORS[name]


def examples(name: str, split: str, *, start: int = 0, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Returns the (source, target) pairs of a split from index `start` on, without the prefix.

    Nothing is read or remembered: example i is computed from (name, split, seed, i) alone.

    Raises:
      ValueError: at the call, if there is no such task or split.
    """
    generate = generator(name)
    if split not in SIZES:
        raise ValueError(f"task {name!r} has no split {split!r}; it has {', '.join(SIZES)}")
    return (generate(split, index, seed) for index in range(start, SIZES[split]))
