"""T5X's encoder-decoder model, decoding through this engine. Needs T5X; see docs/t5x.md."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from specdec import checkpoints, tasks
from specdec.checkpoints import tree
from specdec.decoding import decode
from specdec.integrations import bridge
from specdec.models.t5 import T5Target
from specdec.types import Array, Drafter, Params, PyTree, SamplingRule, Schedule, Verifier

try:
    from t5x import models  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        f"specdec.integrations.t5x needs T5X ({error}); docs/t5x.md says how to install it"
    ) from error


class SpeculativeModel(models.EncoderDecoderModel):  # pyright: ignore[reportAttributeAccessIssue]
    """A `MODEL` for T5X's `infer.gin`, its evaluation and its `InteractiveModel`.

    T5X restores, shards and passes the target's parameters, as for its own model; initial
    variables, losses and `score_batch` are its own too. Only the decoding is this engine's. The
    draft's parameters are read here, and become constants of T5X's compiled programs.

    Args:
      module, input_vocabulary, output_vocabulary, optimizer_def, options: T5X's own. There is no
        `decode_fn`.
      drafter, verifier, schedule, sampling: as `specdec.decode` takes them.
      draft, draft_checkpoint_path: the drafter's model and its parameters, if it has one.

    Raises:
      ValueError, CheckpointError: models and rules that cannot work, before T5X restores anything.
    """

    def __init__(
        self,
        module: Any,
        input_vocabulary: Any,
        output_vocabulary: Any,
        optimizer_def: Any,
        *,
        drafter: Drafter,
        verifier: Verifier,
        schedule: Schedule,
        sampling: SamplingRule,
        draft: T5Target | None = None,
        draft_checkpoint_path: str | None = None,
        **options: Any,
    ):
        super().__init__(
            module, input_vocabulary, output_vocabulary, optimizer_def, decode_fn=None, **options
        )
        if (draft is None) != (draft_checkpoint_path is None):
            raise ValueError("draft and draft_checkpoint_path belong together; give both or none")
        self._target = T5Target(bridge.config_of(module))
        self._decode = functools.partial(
            decode,
            target=self._target,
            drafter=drafter,
            verifier=verifier,
            schedule=schedule,
            sampling=sampling,
        )
        self._greedy = sampling.greedy
        self._draft_params = ()
        if draft is not None and draft_checkpoint_path is not None:
            _check_vocabulary(draft, draft_checkpoint_path, output_vocabulary)
            self._draft_params = _load(draft, draft_checkpoint_path)
        self._try()
        bridge.announce(sampling, drafter, schedule, verifier)

    def predict_batch_with_aux(
        self,
        params: PyTree,
        batch: Mapping[str, Array],
        rng: Array | None = None,
        decoder_params: Mapping[str, Any] | None = None,
        return_all_decodes: bool | None = None,
        num_decodes: int | None = None,
        prompt_with_targets: bool = False,
    ) -> tuple[Array, Mapping[str, Array]]:
        """T5X's method, with T5X's arguments; see `bridge.predictions` for what it returns.

        Of `decoder_params` only `decode_rng` and `eos_id` mean something here. With `num_decodes`
        each text is sampled so many times, and the most probable sample comes last.
        """
        defaults = self._default_decoder_params
        samples = defaults.num_decodes if num_decodes is None else num_decodes
        if return_all_decodes is None:
            return_all_decodes = defaults.return_all_decodes
        if samples > 1 and self._greedy:
            raise ValueError(
                f"num_decodes is {samples} but greedy outputs are all the same, and this is no "
                "beam search; bind a sampling rule, or num_decodes = 1"
            )
        given = dict(decoder_params or {})
        rng = given.pop("decode_rng", None) if rng is None else rng
        eos_id = given.pop("eos_id", self.output_vocabulary.eos_id or 1)
        if given:
            raise ValueError(
                f"decoder_params has {', '.join(given)}, which are for T5X's own decoding "
                "functions; bind the model's sampling instead"
            )
        _check_params(params, self._target)
        inputs, targets = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
        prompt = None
        if prompt_with_targets:  # behind the start token, without EOS
            prompt = jnp.repeat(jnp.where(targets == eos_id, 0, targets)[:, 1:], samples, axis=0)
        output = self._decode(
            Params(params, self._draft_params),
            bridge.row_keys(rng, inputs.shape[0], samples),
            jnp.repeat(inputs, samples, axis=0),
            max_length=targets.shape[1],
            eos_id=eos_id,
            prefix=prompt,
        )
        return bridge.predictions(output, samples, bool(return_all_decodes))

    def _try(self) -> None:
        """Traces a small batch, which is where rules that do not go together show."""
        params = jax.eval_shape(self._target.init, jax.random.key(0))
        decode = functools.partial(self._decode, max_length=2)
        keys = bridge.row_keys(None, 1, 1)
        jax.eval_shape(
            decode, Params(params, self._draft_params), keys, jnp.ones([1, 1], jnp.int32)
        )


def _check_params(params: PyTree, target: T5Target) -> None:
    shapes = {name: leaf.shape for name, leaf in tree.flatten(params).items()}
    tree.check(shapes, target.config, "T5X's tree of parameters")


def _check_vocabulary(draft: T5Target, path: str, vocabulary: Any) -> None:
    if draft.config.vocab_size < vocabulary.vocab_size:
        raise ValueError(
            f"the draft {path} has {draft.config.vocab_size} output ids but the vocabulary "
            f"{vocabulary.vocab_size}; a draft is read as the target's ids: use models of one "
            "vocabulary"
        )
    recorded = checkpoints.vocabulary_from(path, needed=False)
    if recorded is None:
        return
    saved = tasks.recorded_vocabulary(recorded.path, vocabulary.extra_ids)
    if not tasks.same_vocabulary(saved.load(), vocabulary):
        raise ValueError(
            f"the draft {path} was saved with another vocabulary ({recorded}) than the model has; "
            "a draft is read as the target's ids: use models of one vocabulary"
        )


@functools.cache
def _load(draft: T5Target, path: str) -> PyTree:
    """On the host, so that a program for any mesh can take them in; once, however often gin builds
    the model."""
    config = draft.config
    return jax.device_get(checkpoints.load(path, config=config, dtype=config.dtype))
