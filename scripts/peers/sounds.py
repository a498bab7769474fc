"""Times a Whisper of small's sizes next to CTranslate2's and Hugging Face's, in one process.

  python scripts/peers/sounds.py --output_file=FILE [--weights=int8_tokens]
  python scripts/peers/compare.py --table FILE

Weights are random, a sound is two seconds of noise, and 40 tokens follow the usual four of the
prompt. The draft reads the target's encoder. It is the first two layers of the target's decoder,
with a head of 8,192 ids as `specdec distill` makes it, and always right: the target's logits of the
other ids are zero (random_weights.py). README.md next to this file says how engines take turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import flags

NEW, SECONDS = 40, 2  # tokens, and the length of a sound
DRAFT_LAYERS = 2
HEAD = 8192  # ids that the draft has
PROMPT = (50258, 50259, 50359, 50363)  # of an English transcript without timestamps
END = 50257
WEIGHTS = "stored", "int8_tokens"
PEERS = ("huggingface", "ctranslate2_float32", "ctranslate2_int8")


def main() -> int:
    _compare(flags.parsed(__doc__, PEERS, WEIGHTS, gamma=7, texts=3, new=NEW))
    return 0


def _compare(args: argparse.Namespace) -> None:
    import engines
    import numpy as np
    import random_weights

    from specdec.models.whisper import Whisper, WhisperConfig

    layers = {"num_encoder_layers": 12, "num_decoder_layers": 12}
    sizes = {"vocab_size": 51865, "emb_dim": 768, "num_heads": 12, "mlp_dim": 3072}
    target = Whisper(WhisperConfig(**sizes, **layers))
    folder = random_weights.checkpoint(args, "whisper_small", target, DRAFT_LAYERS, HEAD)
    ready = _ours(dataclasses.replace(target, weights=args.weights), folder, args)
    work = engines.Work((), args.new, END, 0, flags.THREADS, "cpu")
    for name in args.peers:
        kind = name.removeprefix("ctranslate2_")
        if kind == name:
            ready[name] = engines.HuggingFaceWhisper(folder, work, PROMPT)
        else:
            ready[name] = engines.CTranslate2Whisper(folder, kind, work, PROMPT)
    noise = np.random.default_rng(0).standard_normal((args.texts, SECONDS * 16000))
    sounds = {i: _features(0.1 * one) for i, one in enumerate(noise)}
    random_weights.timed(args, ready, sounds)


def _features(samples: Any) -> Any:
    """Returns the log-mel features [1, 80, 3000] of one window."""
    import numpy as np

    from specdec.tasks import sound

    return np.ascontiguousarray(sound.log_mel(sound.windows(samples.astype("float32"))))


def _ours(target: Any, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    import numpy as np
    import random_weights

    from specdec import Plan, checkpoints
    from specdec.drafters import Autoregressive
    from specdec.sampling import Greedy
    from specdec.schedules import Fixed
    from specdec.verifiers import GreedyMatch

    config = target.config
    shared = {"num_encoder_layers": 0, "encoded_dim": config.emb_dim}
    kept = {"num_decoder_layers": DRAFT_LAYERS, "head_ids": tuple(range(HEAD))}
    first = dataclasses.replace(config, **kept, **shared)
    draft = dataclasses.replace(target, config=first)
    rules = GreedyMatch(), Fixed(args.gamma), Greedy(), args.new + len(PROMPT) - 1
    plan = Plan(target, Autoregressive(draft, Greedy()), *rules, stop_ids=())
    params = checkpoints.load(folder, config=config, dtype="float32")
    without = draft.part_of({name: leaf for name, leaf in params.items() if name != "encoder"})
    head = {"kernel": params["token_embedder"]["embedding"][:HEAD].T}
    stored = {
        "target": params,
        "draft": without | {"decoder": without["decoder"] | {"logits_dense": head}},
    }
    prefix = np.array([PROMPT[1:]], np.int32)
    return {
        mode: _Specdec(program, owned)
        for mode, program, owned in random_weights.programs(plan, stored, 0, prefix)
    }


class _Specdec:
    """A compiled program of whole windows."""

    def __init__(self, program: Any, params: Any):
        import jax.numpy as jnp

        from specdec.decoding import row_keys

        self._program, self._params = program, params
        self._keys = row_keys(0, jnp.array([0]))

    def generate(self, features: Any) -> list[int]:
        import jax

        output = self._program(self._params, self._keys, features)
        tokens, lengths = jax.device_get((output.tokens, output.length))
        return tokens[0, len(PROMPT) - 1 : lengths[0]].tolist()


if __name__ == "__main__":
    sys.exit(main())
