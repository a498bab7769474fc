"""Metrics in seqio's form: lists of references and predictions -> named numbers."""

from __future__ import annotations

from collections.abc import Sequence


def bleu(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Corpus BLEU (Papineni et al., 2002) of one reference each, 0..100, as sacrebleu's 13a."""
    import sacrebleu

    return {"bleu": sacrebleu.corpus_bleu(list(predictions), [list(targets)]).score}
