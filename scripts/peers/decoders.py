"""Times a LLaMA of 374 million parameters next to CTranslate2's, interleaved in one process.

  python scripts/peers/decoders.py --output_file=FILE [--weights=stored]
  python scripts/peers/compare.py --table FILE

Weights and prompts of 16 tokens are random, and outputs have 48 tokens. The draft is the target's
first two layers, and always right (random_weights.py). README.md next to this file says how engines
take turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

import flags

NEW, PROMPT = 48, 16  # tokens
DRAFT_LAYERS = 2
WEIGHTS = "int8_tokens", "int8", "stored"
PEERS = ("ctranslate2_float32", "ctranslate2_int8")


def main() -> int:
    _compare(flags.parsed(__doc__, PEERS, WEIGHTS, gamma=7, texts=6, new=NEW))
    return 0


def _compare(args: argparse.Namespace) -> None:
    import engines
    import numpy as np
    import random_weights

    from specdec.models.llama import Llama, LlamaConfig

    sizes = {"emb_dim": 1024, "num_heads": 16, "num_kv_heads": 16, "head_dim": 64}
    config = LlamaConfig(vocab_size=32000, mlp_dim=2816, num_decoder_layers=24, **sizes)
    target = Llama(config)
    folder = random_weights.checkpoint(args, "llama_374m", target, DRAFT_LAYERS)
    ready = _ours(dataclasses.replace(target, weights=args.weights), folder, args)
    work = engines.Work((PROMPT,), args.new, 2, 0, flags.THREADS, "cpu")
    for name in args.peers:
        kind = name.removeprefix("ctranslate2_")
        ready[name] = engines.CTranslate2Decoder(folder, kind, work)
    drawn = np.random.default_rng(0).integers(3, config.vocab_size, (args.texts, PROMPT))
    random_weights.timed(args, ready, dict(enumerate(drawn.tolist())))


def _ours(target: Any, folder: Any, args: argparse.Namespace) -> dict[str, Any]:
    import engines
    import random_weights

    from specdec import Plan, checkpoints
    from specdec.drafters import Autoregressive
    from specdec.sampling import Greedy
    from specdec.schedules import Fixed
    from specdec.verifiers import GreedyMatch

    drafter = Autoregressive(target.first(DRAFT_LAYERS), Greedy())
    rules = GreedyMatch(), Fixed(args.gamma), Greedy(), args.new
    plan = Plan(target, drafter, *rules, stop_ids=())
    params = checkpoints.load(folder, config=target.config, dtype="float32")
    stored = {"target": params, "draft": target.first(DRAFT_LAYERS).part_of(params)}
    return {
        mode: engines.Specdec({PROMPT: program}, owned)
        for mode, program, owned in random_weights.programs(plan, stored, PROMPT)
    }


if __name__ == "__main__":
    sys.exit(main())
