"""T5X's encoder-decoder model, decoding through this engine. Needs T5X; see docs/how-to/t5x.md."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from specdec.checkpoints import tree
from specdec.decoding import decode
from specdec.decoding.beam_rules import T5XBeams
from specdec.decoding.beam_search import beam_search
from specdec.decoding.program import DecodeProgram, batch_shapes
from specdec.drafters.drafter import Drafter
from specdec.engine import Engine, NotExact, Placement, Settings
from specdec.engine.beam_engine import beam_plan
from specdec.integrations import bridge
from specdec.models.contract.model import Model, Target
from specdec.models.t5 import T5Target
from specdec.plan import Plan
from specdec.schedules.schedule import Schedule
from specdec.types import Array, Params, PyTree, SamplingRule, Table
from specdec.verifiers.decide import Verifier

try:
    from t5x import models  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        f"specdec.integrations.t5x needs T5X ({error}); docs/how-to/t5x.md says how to install it"
    ) from error


class SpeculativeModel(models.EncoderDecoderModel):  # pyright: ignore[reportAttributeAccessIssue]
    """A `MODEL` for T5X's `infer.gin`, its evaluation and its `InteractiveModel`.

    T5X restores, shards and passes the target's parameters, as for its own model. Initial
    variables, losses and `score_batch` are T5X's too. Only decoding is done by specdec, which reads
    the draft's parameters. They become constants of T5X's compiled programs.
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
        draft: Model | None = None,
        draft_checkpoint_path: str | None = None,
        draft_table_path: str | None = None,
        schedule_table_path: str | None = None,
        lossy: bool = False,
        **options: Any,
    ):
        super().__init__(
            module, input_vocabulary, output_vocabulary, optimizer_def, decode_fn=None, **options
        )
        if (draft is None) != (draft_checkpoint_path is None):
            raise ValueError("draft and draft_checkpoint_path belong together; give both or none")
        self._target = T5Target(bridge.config_of(module))
        plan = Plan(self._target, drafter, verifier, schedule, sampling, max_length=2)
        weights: dict[str, str] = {}
        if draft_checkpoint_path is not None:
            weights |= dict.fromkeys(drafter.models(), draft_checkpoint_path)
        for owner, path, name in (
            (drafter, draft_table_path, "draft_table_path"),
            (schedule, schedule_table_path, "schedule_table_path"),
        ):
            for role in owner.tables():
                if path is None:
                    raise ValueError(f"{type(owner).__name__} has a table, {role}; give {name}")
                weights[role] = path
        if missing := drafter.owned().keys() - weights.keys():
            raise ValueError(
                f"the drafter has parameters for {', '.join(missing)}; give draft and "
                "draft_checkpoint_path"
            )
        try:
            engine = Engine.open(
                plan, weights, output_vocabulary, settings=Settings(lossy=lossy), layouts=False
            )
        except NotExact as error:
            raise ValueError(
                f"{verifier} does not keep the target's distribution; give lossy = True"
            ) from error
        self._plan = engine.plan
        self._others = {role: _read(engine.plan.owned()[role], weights[role]) for role in weights}
        # A small batch is traced, so that components that do not fit each other are found.
        params = Params(self._target.parameter_shapes(), **self._others)
        DecodeProgram(self._plan).lower(params, *batch_shapes(self._target, 1, 1))
        bridge.announce(str(self._plan))

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
        """Decodes a batch. Arguments are T5X's, and the result that of `bridge.predictions`.

        Only `decode_rng`, `eos_id` and `alpha` of `decoder_params` are used. With a temperature,
        each text is sampled `num_decodes` times, and the most probable sample comes last. At
        temperature 0, `num_decodes` is the number of beams, `alpha` their length penalty, and the
        output equals that of T5X's `beam_search`. A draft has twice as many beams.
        """
        defaults = self._default_decoder_params
        samples = defaults.num_decodes if num_decodes is None else num_decodes
        if return_all_decodes is None:
            return_all_decodes = defaults.return_all_decodes
        beams = samples > 1 and self._plan.sampling.greedy
        others = dict(decoder_params or {})
        rng = others.pop("decode_rng", None) if rng is None else rng
        eos_id = others.pop("eos_id", self.output_vocabulary.eos_id)
        stop_ids = self._target.stop_ids if eos_id is None else (eos_id,)
        alpha = others.pop("alpha", 0.6) if beams else None
        if others:
            raise ValueError(
                f"decoder_params has {', '.join(others)}, which are for T5X's own decoding "
                "functions; bind the model's sampling instead"
            )
        shapes = {name: leaf.shape for name, leaf in tree.flatten(params).items()}
        tree.check(shapes, self._target.config, "T5X's tree of parameters")
        inputs, targets = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
        prompt = self._prompt(targets, stop_ids) if prompt_with_targets else None
        plan = dataclasses.replace(self._plan, max_length=targets.shape[1], stop_ids=stop_ids)
        if alpha is not None:
            best_only = not return_all_decodes
            search = beam_plan(plan, samples, T5XBeams(alpha), best_only=best_only)
            beam_output = beam_search(Params(params, **self._others), inputs, search, prefix=prompt)
            return bridge.beams(beam_output, bool(return_all_decodes))
        output = decode(
            Params(params, **self._others),
            bridge.row_keys(rng, inputs.shape[0], samples),
            jnp.repeat(inputs, samples, axis=0),
            plan,
            prefix=None if prompt is None else jnp.repeat(prompt, samples, axis=0),
        )
        return bridge.predictions(output, samples, bool(return_all_decodes))

    def _prompt(self, targets: Array, stop_ids: tuple[int, ...]) -> Array:
        """Returns the tokens after the start token, without stop ids."""
        stops = jnp.isin(targets, jnp.array(stop_ids))
        return jnp.where(stops, self._target.pad_id, targets)[:, 1:]


@functools.cache
def _read(owned: Target | Table, path: str) -> PyTree:
    """Reads parameters to the host once, so that a program for any mesh can use them."""
    return jax.device_get(Placement().read(owned, path))
