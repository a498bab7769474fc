"""Times a Whisper of small's sizes next to CTranslate2's and Hugging Face's, in one process.

  python scripts/peers/sounds.py --output_file=FILE [--weights=int8_tokens]
  python scripts/peers/compare.py --table FILE

Weights are random, a sound is two seconds of noise, and 40 tokens follow the usual four of the
prompt. The draft reads the target's encoder, and is the first two layers of its decoder. The other
layers are computed, but add nothing, so that every draft is right. README.md next to this file says
how engines take turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

THREADS = 2
NEW, SECONDS = 40, 2  # tokens, and the length of a sound
DRAFT_LAYERS = 2
PROMPT = (50258, 50259, 50359, 50363)  # of an English transcript without timestamps
END = 50257
PEERS = ("huggingface", "ctranslate2_float32", "ctranslate2_int8")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--output_file", required=True, metavar="FILE")
    kinds = "stored", "int8_tokens"
    parser.add_argument("--weights", default="stored", choices=kinds, help="of ours")
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS, metavar="NAME")
    parser.add_argument("--gamma", type=int, default=5, metavar="N")
    parser.add_argument("--sounds", type=int, default=3, metavar="N")
    parser.add_argument("--repeats", type=int, default=2, metavar="N")
    parser.add_argument("--pause", type=float, default=0.3, metavar="S")
    args = parser.parse_args()
    # As in compare.py: before anything that starts threads is imported.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    _compare(args)
    return 0


def _compare(args: argparse.Namespace) -> None:
    import decoders
    import jax
    import numpy as np
    import table
    import turns

    from specdec import checkpoints
    from specdec.common.environment import environment
    from specdec.models.whisper import Whisper, WhisperConfig

    layers = {"num_encoder_layers": 12, "num_decoder_layers": 12}
    sizes = {"vocab_size": 51865, "emb_dim": 768, "num_heads": 12, "mlp_dim": 3072}
    target = Whisper(WhisperConfig(**sizes, **layers))
    work_dir = Path(args.output_file).absolute().parent / "checkpoints"
    work_dir.mkdir(parents=True, exist_ok=True)
    folder = work_dir / "whisper_small"
    if not folder.exists():
        params = jax.device_get(target.init(jax.random.key(0)))
        params = decoders.with_silent_layers(params, DRAFT_LAYERS)
        checkpoints.save(folder, params, config=target.config, format="huggingface")
    about = {**vars(args), "output_file": None, "threads": THREADS, **environment()}
    file = table.File(args.output_file, about)
    ready = _ours(target, checkpoints.load(folder, config=target.config, dtype="float32"), args)
    ready |= _peers(folder, args.peers)
    noise = np.random.default_rng(0).standard_normal((args.sounds, SECONDS * 16000))
    sounds = {i: _features(0.1 * one) for i, one in enumerate(noise)}
    for engine in ready.values():
        engine.generate(sounds[0])  # the first generation is slower, and not timed
    skip = file.resume(ready)
    for record in turns.measure(ready, sounds, repeats=args.repeats, skip=skip, pause=args.pause):
        file.write(record)
    print(*table.lines(table.read(args.output_file)), sep="\n")


def _features(samples: Any) -> Any:
    """Returns the log-mel features [1, 80, 3000] of one window."""
    import numpy as np

    from specdec.tasks import sound

    return np.ascontiguousarray(sound.log_mel(sound.windows(samples.astype("float32"))))


def _ours(target: Any, params: Any, args: argparse.Namespace) -> dict[str, Any]:
    import jax
    import numpy as np

    from specdec import Plan
    from specdec.decoding.program import DecodeProgram, batch_shapes
    from specdec.drafters import Autoregressive
    from specdec.sampling import Greedy
    from specdec.schedules import Fixed
    from specdec.verifiers import GreedyMatch

    config = target.config
    shared = {"num_encoder_layers": 0, "encoded_dim": config.emb_dim}
    first = dataclasses.replace(config, num_decoder_layers=DRAFT_LAYERS, **shared)
    draft = dataclasses.replace(target, config=first, weights=args.weights)
    target = dataclasses.replace(target, weights=args.weights)
    drafter = Autoregressive(draft, Greedy())
    rules = GreedyMatch(), Fixed(args.gamma), Greedy(), NEW + len(PROMPT) - 1
    plan = Plan(target, drafter, *rules, stop_ids=())
    of_draft = draft.part_of({name: leaf for name, leaf in params.items() if name != "encoder"})
    prefix, found = np.array([PROMPT[1:]], np.int32), {}
    for mode, one in {"alone": plan.alone(), "speculative": plan}.items():
        one = one.laid_out(1)
        trees = {
            role: jax.device_put(model.from_stored(of_draft if role == "draft" else params))
            for role, model in one.models().items()
        }
        owned, shapes = one.params(trees), batch_shapes(one.target, 1, 0)
        found[mode] = _Specdec(DecodeProgram(one, prefix=prefix).compile(owned, *shapes), owned)
        print(f"{mode}: {one}, target in {one.target.layout} {one.target.orders}", file=sys.stderr)
    return found


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


def _peers(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    import engines

    work = engines.Work((), NEW, END, 0, THREADS, "cpu")
    found: dict[str, Any] = {}
    for name in names:
        kind = name.removeprefix("ctranslate2_")
        if kind == name:
            found[name] = engines.HuggingFaceWhisper(folder, work, PROMPT)
        else:
            found[name] = engines.CTranslate2Whisper(folder, kind, work, PROMPT)
    return found


if __name__ == "__main__":
    sys.exit(main())
