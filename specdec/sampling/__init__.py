"""The steps from logits to a token.

  logits -> processors, which may read the text so far -> temperature, top-k, top-p -> a token

`Greedy` and `Sampling` do the second step; `Processed` adds the first one. Baseline, draft and
verification take the same steps, in the same order.
"""

from specdec.sampling.drawing import draw, draw_shared, gumbel
from specdec.sampling.processed import (
    Processed,
    before_each,
    check_ids,
    instead,
    looks_back,
    standardised,
    unprocessed,
    with_processors,
)
from specdec.sampling.processors import (
    ForcedEOS,
    ForcedTokens,
    FrequencyPenalty,
    MinLength,
    NoBadWords,
    NoRepeatNGram,
    PresencePenalty,
    RepetitionPenalty,
    SuppressTokens,
    SuppressTokensAtBegin,
    filled_in,
    in_order,
    ordered,
)
from specdec.sampling.standard import Greedy, Sampling, fit_vocabulary, is_distribution, tempered
from specdec.sampling.timestamps import Opening, Timestamps

__all__ = [
    "ForcedEOS",
    "ForcedTokens",
    "FrequencyPenalty",
    "Greedy",
    "MinLength",
    "NoBadWords",
    "NoRepeatNGram",
    "Opening",
    "PresencePenalty",
    "Processed",
    "RepetitionPenalty",
    "Sampling",
    "SuppressTokens",
    "SuppressTokensAtBegin",
    "Timestamps",
    "before_each",
    "check_ids",
    "draw",
    "draw_shared",
    "filled_in",
    "fit_vocabulary",
    "gumbel",
    "in_order",
    "instead",
    "is_distribution",
    "looks_back",
    "ordered",
    "standardised",
    "tempered",
    "unprocessed",
    "with_processors",
]
