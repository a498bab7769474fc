"""The token loop: prefill, then draft -> verify -> commit until every row is done.

One iteration of `step`, for one row with draft tokens x y z, of which the target accepts x y:

  positions            n    n+1  n+2  n+3
  committed     .. a   b                       b is pending: committed, not fed to the target
  target is fed        b    x    y    z        one call
  its logits predict   x?   y?   z?   ?
  committed     .. a   b    x    y    c        c is the target's own; now c is pending
  valid cache   .. a   b    x    y             length n+3; z's slot is garbage, overwritten next

The modules of this package:

- `loop` has that iteration and the functions that run it.
- `states` makes and changes the loop's state.
- `rows` gives rows of a running batch new texts.
- `keys` derives the random keys.
- `finite` has the error for a target without finite logits.
- `forcing` scores given tokens.
- `replay` computes both models' probabilities of a finished text's tokens.

Beam search has its own loop in `beam_search`. `beam_plan` describes a search, `beam_rules` has the
bookkeeping of T5X and of Hugging Face, and `draft_beams` drafts trees of beams.
"""

from specdec.decoding.finite import NonFiniteLogits, check_finite, check_scores, naming_texts
from specdec.decoding.forcing import score
from specdec.decoding.keys import abstract_keys, row_keys, token_key
from specdec.decoding.loop import (
    autoregressive_decode,
    decode,
    prefill,
    propose,
    refill,
    sample,
    step,
)
from specdec.decoding.replay import Decided, Replay, replay
from specdec.decoding.rows import vacant, widened
from specdec.decoding.states import PrefixError, check_prefix, output

__all__ = [
    "Decided",
    "NonFiniteLogits",
    "PrefixError",
    "Replay",
    "abstract_keys",
    "autoregressive_decode",
    "check_finite",
    "check_prefix",
    "check_scores",
    "decode",
    "naming_texts",
    "output",
    "prefill",
    "refill",
    "propose",
    "replay",
    "row_keys",
    "sample",
    "score",
    "step",
    "token_key",
    "vacant",
    "widened",
]
