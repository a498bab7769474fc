"""Beam search of a run's target by T5X and by transformers, on the same weights.

T5X is read from a checkout: `beam_search` and the network import JAX and Flax alone, the package
around them a good deal more. PyTorch and transformers are imported on use.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import engines
import jax
import jax.numpy as jnp
import numpy as np

from specdec import checkpoints
from specdec.common.values import UsageError
from specdec.decoding.beam_rules import BeamRule, HuggingFaceBeams, T5XBeams
from specdec.engine.beam_engine import BeamEngine, beam_plan, searching
from specdec.texts.measured_run import Run
from specdec.types import Params, PyTree

LABELS = {
    "t5x": "T5X's search and network",
    "t5x_search": "T5X's search on our step",
    "huggingface": "transformers' generate",
}
RULES = {"t5x": T5XBeams(), "t5x_search": T5XBeams(), "huggingface": HuggingFaceBeams()}
DECODING = "decoding.py"  # the file that identifies a version of T5X's search


class Found(NamedTuple):
    """The beams of a batch, the best first; 0 behind the end of a text."""

    tokens: np.ndarray  # [B, w, N] int32
    scores: np.ndarray  # [B, w] float32


def plain(run: Run, beams: int, rule: BeamRule) -> BeamEngine:
    """Returns our search without a draft."""
    return searching(run.engine, beam_plan(run.engine.plan, beams, rule).alone())


def ours(search: BeamEngine, batch: Any, weights: PyTree = None) -> Found:
    """Returns the beams of a batch by specdec, of other weights than the engine's where given."""
    params = Params(target=search.params["target"] if weights is None else weights)
    keys = search.keys(batch, seed=0)
    output, _ = search.program.fetch(params, keys, batch.inputs)
    return Found(np.asarray(output.tokens), np.asarray(output.scores))


def peer(name: str, search: BeamEngine, run: Run, t5x: str | None, work_dir: Path) -> Any:
    """Returns a peer: a function of [B, S] inputs that returns what it found."""
    if name == "huggingface":
        return HuggingFace(search, run, work_dir)
    return T5X(search, run, package(t5x), own_network=name == "t5x")


def versions(names: list[str], t5x: str | None) -> dict[str, str]:
    """Returns what identifies the versions of some peers; of T5X the git hash of `decoding.py`."""
    found: dict[str, str] = {}
    if "huggingface" in names:
        for name in ("torch", "transformers"):
            found[name] = importlib.import_module(name).__version__
    if {"t5x", "t5x_search"} & set(names):
        text = (package(t5x) / DECODING).read_bytes()
        found["t5x_decoding"] = hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()
    return found


def package(checkout: str | None) -> Path:
    """Returns T5X's package in a checkout.

    Raises:
      UsageError: there is none.
    """
    folder = Path(checkout or "t5x-checkout-not-given") / "t5x"
    if not (folder / DECODING).is_file():
        raise UsageError(
            f"--t5x is {checkout!r} and has no t5x/{DECODING}; give a checkout of "
            "https://github.com/google-research/t5x"
        )
    return folder


def module_of(folder: Path, name: str) -> Any:
    """Returns a module of T5X without what `import t5x` imports."""
    stub = types.ModuleType("t5x")
    stub.__path__ = [str(folder)]
    sys.modules.setdefault("t5x", stub)
    return importlib.import_module(f"t5x.{name}")


class T5X:
    """T5X's `beam_search`, on T5X's network or on our model's step; compiled by shape."""

    def __init__(self, search: BeamEngine, run: Run, folder: Path, *, own_network: bool):
        self._plan = search.plan
        self._search = module_of(folder, "decoding")
        if own_network:
            network = module_of(folder, "examples.t5.network")
            config = search.plan.target.stored().config
            known = {field.name for field in dataclasses.fields(network.T5Config)}
            sizes = {name: x for name, x in dataclasses.asdict(config).items() if name in known}
            self._module = network.Transformer(network.T5Config(**sizes, dropout_rate=0.0))
            path = run.paths()["target"]
            self._params = checkpoints.load(path, config=config, dtype=config.dtype)
        else:
            self._params = search.params["target"]
        self._jitted = jax.jit(self._with_network if own_network else self._with_step)
        self._programs: dict[tuple[int, ...], Any] = {}

    def __call__(self, inputs: np.ndarray) -> Found:
        if inputs.shape not in self._programs:
            lowered = self._jitted.lower(self._params, jnp.asarray(inputs))
            self._programs[inputs.shape] = lowered.compile()
        found = self._programs[inputs.shape](self._params, jnp.asarray(inputs))
        tokens, scores = jax.device_get(found)
        return Found(tokens[:, ::-1], scores[:, ::-1])

    def _with_network(self, params: PyTree, inputs: Any) -> Any:
        """Does what `EncoderDecoderModel.predict_batch_with_aux` of T5X does."""
        apply, count = self._module.apply, self._plan.beams
        outputs = jnp.zeros([len(inputs), self._plan.max_length], jnp.int32)
        tree = {"params": params}
        encoded = apply(tree, inputs, enable_dropout=False, method="encode")
        ones = jnp.ones_like(inputs), jnp.ones_like(outputs), jnp.ones_like(outputs)
        _, made = apply(tree, *ones, mutable=["cache"], decode=True, enable_dropout=False)
        given = (self._search.flat_batch_beam_expand(x, count) for x in (encoded, inputs))
        encoded, inputs = given

        def logits(state: Any) -> Any:
            tokens = state.cur_token
            found, new = apply(
                tree | {"cache": state.cache},
                *(encoded, inputs, tokens, tokens),
                enable_dropout=False,
                decode=True,
                max_decode_length=self._plan.max_length,
                mutable=["cache"],
                method="decode",
            )
            return found[:, 0], new["cache"]

        return self._found(outputs, made["cache"], logits)

    def _with_step(self, params: PyTree, inputs: Any) -> Any:
        """Keeps what is made of the inputs out of the cache, which the search reorders."""
        target, count = self._plan.target, self._plan.beams
        cache = target.prefill(params, inputs, self._plan.max_length)
        outputs = jnp.zeros([len(inputs), self._plan.max_length], jnp.int32)
        whole = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), cache)

        def logits(state: Any) -> Any:
            length = jnp.full([count * len(inputs)], state.cur_index, jnp.int32)
            fed = whole.replace(length=length, **state.cache)
            found, new = target.decode(params, state.cur_token, fed)
            return found.logits[:, 0], {"keys": new.keys, "values": new.values}

        return self._found(outputs, {"keys": cache.keys, "values": cache.values}, logits)

    def _found(self, outputs: Any, cache: Any, logits: Any) -> Any:
        (stop,) = self._plan.stop_ids
        alpha = self._plan.rule.alpha
        return self._search.beam_search(outputs, cache, logits, stop, self._plan.beams, alpha)


class HuggingFace:
    """`generate` of transformers with its defaults, but for the number of beams and the lengths."""

    def __init__(self, search: BeamEngine, run: Run, work_dir: Path):
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.set_num_threads(1)  # a busy machine makes threads wait for each other at every step
        config = search.plan.target.stored().config
        folder = engines.export(config, run.paths()["target"], "target", work_dir)
        read = transformers.T5ForConditionalGeneration.from_pretrained
        self._model = read(folder, dtype="auto").eval()
        self._plan = search.plan

    def __call__(self, inputs: np.ndarray) -> Found:
        import torch
        from transformers import DynamicCache, EncoderDecoderCache

        rows, count, longest = len(inputs), self._plan.beams, self._plan.max_length
        (stop,) = self._plan.stop_ids
        ids = torch.tensor(np.asarray(inputs), dtype=torch.long)
        found = self._model.generate(
            ids,
            attention_mask=(ids != 0).long(),
            # The cache that it makes itself has as many layers as the encoder.
            past_key_values=EncoderDecoderCache(DynamicCache(), DynamicCache()),
            num_beams=count,
            num_return_sequences=count,
            max_new_tokens=longest,
            do_sample=False,
            eos_token_id=stop,
            pad_token_id=0,
            decoder_start_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
        tokens = found.sequences[:, 1:].numpy().astype(np.int32)
        tokens = np.pad(tokens, ((0, 0), (0, longest - tokens.shape[1])))
        behind = np.cumsum(tokens == stop, axis=1) - (tokens == stop) > 0
        tokens = np.where(behind, 0, tokens).reshape(rows, count, longest)
        return Found(tokens, found.sequences_scores.numpy().reshape(rows, count))
