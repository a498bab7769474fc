"""An engine resolves a plan once: vocabulary, stop ids, int8 weights, devices and layouts."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Generic, Self

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import TypeVar

from specdec import checkpoints, decoding, tasks
from specdec.checkpoints import generation_settings as generation
from specdec.checkpoints.transcription import Transcribed
from specdec.common import progress
from specdec.decoding.beam_plan import AnyPlan, BeamPlan
from specdec.decoding.beam_search import BeamOutput
from specdec.decoding.program import DecodeProgram, GivenBatch, Sampled, Stepwise, Way, batch_shapes
from specdec.decoding.refilling import Refilled
from specdec.decoding.row_bits import check_same_beams, check_same_bits
from specdec.drafters.drafter import Drafter
from specdec.engine.key import drafter_key, fingerprints, flat
from specdec.engine.open_settings import Settings
from specdec.engine.opening import (
    check_fit,
    in_eight_bits,
    obeying,
    padding_alike,
    saved_vocabulary,
)
from specdec.engine.placement import Placement
from specdec.engine.store import Store
from specdec.models.contract.model import Target
from specdec.plan import Plan
from specdec.tasks import LoadedVocabulary
from specdec.types import Array, DecodeOutput, Params, PyTree, Revised

LOCAL = Placement()  # one device, no mesh
DEFAULTS = Settings()
BITS_INPUTS = 64  # tokens of synthetic inputs, on which the bits of calls are compared


PlanT = TypeVar("PlanT", bound=AnyPlan, default=Plan)
OutputT = TypeVar("OutputT", DecodeOutput, BeamOutput, default=DecodeOutput)


class NotExact(ValueError):
    """The output's distribution may differ from the target's, and `lossy` is not set."""


@dataclasses.dataclass(frozen=True, eq=False)
class Engine(Generic[PlanT, OutputT]):
    """A plan with everything resolved for its devices, and with its parameters and vocabulary.

    `Engine.open` makes one that decodes, and `beam_engine.searching` one that searches for beams.
    Nothing is compiled, and no parameter is read, before it is needed.

    Args:
      plan: the plan after `open`: with stop ids, generation settings, int8 weights and layouts.
      vocabulary: the vocabulary of all models, in seqio's form.
      weights: role -> directory of a checkpoint or a table. The target may be missing if its
        parameters come from elsewhere.
      store: the devices, and the parameters that were read. Variants of an engine share it.
      rows: B, the number of texts in a batch.
      text: the ids and generation settings in the target's checkpoint; None without a checkpoint.
      prefix: the ids that every output begins with.
      settings: whether the checkpoint's generation settings are obeyed.
      together: the number of samples of a text that are decoded together.
      way_of: makes `way`, which decodes, from the plan and the prefix; `suited` chooses it. None
        decodes batch by batch.
    """

    plan: PlanT
    vocabulary: LoadedVocabulary
    weights: Mapping[str, str | PathLike]
    store: Store = dataclasses.field(default_factory=Store)
    rows: int = 1
    text: checkpoints.TextModel | None = None
    prefix: tuple[int, ...] = ()
    settings: generation.Choice = "obey"
    together: int = 1
    way_of: Callable[..., Way] | None = None

    @classmethod
    def open(
        cls: type[Engine],
        plan: Plan,
        weights: Mapping[str, str | PathLike],
        vocabulary: LoadedVocabulary | None = None,
        devices: Placement = LOCAL,
        settings: Settings = DEFAULTS,
        *,
        rows: int = 1,
        num_samples: int = 1,
        num_beams: int = 0,
        prefix: str = "",
        layouts: bool = True,
    ) -> Engine:
        """Resolves everything that an output depends on, and returns the engine.

        The order is: vocabulary, stop ids, generation settings, fit, int8 weights, mesh, layouts.

        Args:
          plan: models, rules and sampling. The checkpoint's stop ids replace the plan's.
          weights: role -> directory, for everything in `plan.owned`; the target may be missing.
          vocabulary: seqio's, or `tasks.for_texts` of a definition; None for the one that was saved
            with the target.
          devices: the devices that models are divided over.
          settings: eight bits, generation settings, and whether the output may be lossy.
          rows: B, the number of texts in a batch.
          num_samples: outputs per text, compared with the checkpoint's settings.
          num_beams: beams of a search, 0 for none; also compared.
          prefix: the text that every output begins with.
          layouts: whether kernels are stored in the layouts that the devices read fastest; False if
            the target's parameters are passed in.

        Raises:
          NotExact: the output may have another distribution, and `settings.lossy` is false.
          CheckpointError, TableError, TaskError, ValueError: something is missing or does not fit.
        """
        for role in plan.owned().keys() - weights.keys() - {"target"}:
            raise ValueError(f"nothing says where the parameters of {role!r} are; give a directory")
        if vocabulary is None:
            vocabulary = tasks.for_texts(saved_vocabulary(weights["target"]))
        path, text, chosen = weights.get("target"), None, settings.generation_settings
        if path is not None:
            text = checkpoints.text_model_from(path, needed=False)
            if isinstance(chosen, Transcribed):
                chosen = chosen.resolved(text.settings)
            plan = dataclasses.replace(plan, stop_ids=generation.stop_ids(text, vocabulary))
            plan = obeying(plan, text, chosen, bool(prefix), num_samples, num_beams)
        plan = padding_alike(plan)
        check_fit(plan, weights, vocabulary)
        plan = in_eight_bits(plan, settings.int8, settings.int8_tokens)
        if not (plan.exact or settings.lossy):
            raise NotExact(plan)
        ids = tuple(vocabulary.encode(prefix)) if prefix else ()
        decoding.check_prefix(len(ids), plan.max_length)
        devices, plan = devices.of_run(plan, weights, rows)
        plan = devices.laid_out(plan, rows) if layouts else plan
        fields = dict(weights), Store(devices), rows, text, ids, chosen
        return cls(plan, vocabulary, *fields)

    def alone(self) -> Self:
        """Returns the baseline, an engine whose target decodes alone, in the layouts for that."""
        plan = self.placement.laid_out(self.plan.baseline(), self.rows * self.together)
        return self.with_plan(plan)

    def variant(
        self: Engine, weights: Mapping[str, str | PathLike] | None = None, **parts: object
    ) -> Engine:
        """Returns this engine with another drafter, schedule or verifier.

        Args:
          weights: role -> directory, for roles that this engine lacks.
          **parts: fields of the plan.
        """
        plan = dataclasses.replace(self.plan, **parts)
        plan = self.placement.divided(plan) if self.placement.mesh is not None else plan
        plan = self.placement.laid_out(plan, self.rows * self.together)
        return self.with_plan(plan, weights={**self.weights, **(weights or {})})

    def with_models(self, models: Mapping[str, Target]) -> Self:
        """Returns this engine with other models or layouts; it shares the parameters in `store`."""
        return self.with_plan(self.plan.with_models(models))

    def with_plan(
        self,
        plan: AnyPlan,
        *,
        weights: Mapping[str, str | PathLike] | None = None,
        **changes: object,
    ) -> Any:
        """Returns an engine of another plan, which shares this one's store and settings.

        Args:
          plan: the plan, whose models have the layouts to use.
          weights: role -> directory; None for this engine's. Only the plan's roles are kept.
          **changes: other fields of the engine.
        """
        paths = (self.weights if weights is None else weights).items()
        owned = {role: path for role, path in paths if role in plan.owned()}
        changes = {"way_of": None} | changes
        return dataclasses.replace(self, plan=plan, weights=owned, **changes)

    @property
    def placement(self) -> Placement:
        """The devices, and how the models are divided over them."""
        return self.store.placement

    @functools.cached_property
    def params(self) -> Params:
        """The parameters of all roles, read at first use and kept.

        Raises:
          NotTheSameBits: the plan has `same_bits`, and calls on this device differ in their bits.
        """
        params = self._read_from(self.store)
        if self.plan.same_bits and self.plan.drafts:
            with progress.stage("measuring", "measuring the bits of the target's calls"):
                size = self.rows * self.together, BITS_INPUTS
                if isinstance(self.plan, BeamPlan):
                    check_same_beams(self.plan, params, *size)
                else:
                    check_same_bits(self.plan, params["target"], *size)
        return params

    def load(self) -> Params:
        """Reads `params` now rather than at first use, and returns them."""
        return self.params

    def read(self) -> Params:
        """Reads the parameters of all roles without keeping them."""
        return self._read_from(self.store.copy())

    def _read_from(self, store: Store) -> Params:
        owned = self.plan.owned().items()
        return Params(**{role: store.read(x, str(self.weights[role]), role) for role, x in owned})

    def abstract(self) -> Params:
        """Returns the shapes and dtypes of `params`; over a mesh also their shardings.

        Raises:
          ValueError: a model cannot be divided over the mesh.
        """
        owned = self.plan.owned().items()
        shapes = {role: self.placement.shape(x, str(self.weights[role])) for role, x in owned}
        return Params(**shapes)

    @functools.cached_property
    def program(self) -> DecodeProgram:
        """The program that decodes a batch with the plan, or searches for its beams."""
        return DecodeProgram(self.plan, mesh=self.placement.mesh, prefix=self.given_prefix)

    @functools.cached_property
    def way(self) -> Way:
        """The object that decodes for `outputs`: batch by batch, or as `suited` has chosen."""
        make = self.way_of
        return self.program if make is None else make(self.plan, prefix=self.given_prefix)

    @functools.cached_property
    def _stepwise(self) -> Stepwise:
        assert not isinstance(self.plan, BeamPlan), "beams are not known before the end"
        return Stepwise(self.plan, prefix=self.given_prefix)

    @property
    def compile_seconds(self) -> float:
        """The time of all compilations for `outputs` and `steps` so far."""
        stepwise = vars(self).get("_stepwise")
        return self.way.seconds + (stepwise.seconds if stepwise else 0.0)

    def suited(
        self,
        *,
        samples: int = 1,
        together: int = 1,
        widths: Sequence[int] = (),
        watch: Callable[[DecodeOutput], None] | None = None,
    ) -> Self:
        """Returns this engine with the `way` that suits the texts of a run.

        An engine that searches for beams is returned unchanged.

        Args:
          samples: outputs for each text.
          together: the most samples of a text that one call decodes; the largest number up to it
            that divides `samples` is used.
          widths: the lengths, ascending, that inputs are padded to, if rows are refilled; else ().
          watch: called with the output so far after each target call, if there is one device and a
            drafter; else it is ignored.

        Raises:
          ValueError: rows are to be refilled, and there is one row, or a mesh.
        """
        if isinstance(self.plan, BeamPlan):
            return self
        if watch is not None and self.placement.mesh is None and self.plan.drafts:
            return self._decoding_by(Stepwise, watch=watch)
        if widths:
            return self.refilled(widths)
        divisors = (n for n in range(together, 0, -1) if samples % n == 0)
        return self.sampled(next(divisors)) if samples > 1 else self

    def sampled(self, together: int = 1) -> Self:
        """Returns this engine, encoding inputs once for all samples of a text.

        Over a mesh it returns the engine unchanged.

        Args:
          together: the number of samples of a text that one call decodes.
        """
        if self.placement.mesh is not None:
            return self
        plan = self.plan
        if together > 1:
            plan = self.placement.laid_out(plan, self.rows * together)
        engine = dataclasses.replace(self, plan=plan, together=together)
        return engine._decoding_by(Sampled, together=together)

    def refilled(self, widths: Sequence[int]) -> Self:
        """Returns this engine with rows that are refilled as their texts end.

        Args:
          widths: the lengths, ascending, that inputs are padded to.

        Raises:
          ValueError: there is one row, or a mesh.
        """
        if (mesh := self.placement.mesh) is not None:
            raise ValueError(
                f"REFILL is for one device and NUM_PARTITIONS makes a mesh of {mesh.size}; leave "
                "out one of them"
            )
        engine = self._decoding_by(Refilled, rows=self.rows, widths=widths)
        _ = engine.way  # raises for one row
        return engine

    def _decoding_by(self, kind: Callable[..., Way], **options: object) -> Self:
        return dataclasses.replace(self, way_of=functools.partial(kind, **options))

    @property
    def given_prefix(self) -> Array | None:
        """The prefix of every row, [B, P] int32; None if there is none."""
        if not self.prefix:
            return None
        return jnp.tile(jnp.array(self.prefix, jnp.int32), (self.rows, 1))

    def check(self, length: int, *, compile: bool = False) -> None:
        """Traces the programs for inputs of `length` tokens, to find components that do not fit.

        Args:
          length: S, in tokens.
          compile: whether to begin to compile in the background.

        Raises:
          ValueError: components do not fit each other.
        """
        target, mesh = self.plan.target, self.placement.mesh
        keys, inputs = batch_shapes(target, self.rows, length, mesh)
        if self.plan.reads_previous:
            _, previous = batch_shapes(target, self.rows, self.plan.max_length, mesh)
            inputs = Revised(inputs, previous)
        for program, arguments in self.way.parts(self.abstract(), keys, inputs):
            program.lower(*arguments)
            if compile:
                program.begin_to_compile(*arguments)

    def decode(
        self, batch: tasks.Batch, *, seed: int = 0, sample: int = 0
    ) -> tuple[OutputT, float]:
        """Decodes a batch of texts, or finds their beams, without random draws.

        Args:
          batch: the texts.
          seed: the seed of all random draws. The output of a text depends only on the seed, the
            text's index and the sample.
          sample: the index of this sample among several of each text.

        Returns:
          The output, on the host, and the seconds that it took without compiling.

        Raises:
          NonFiniteLogits: logits are NaN or infinite; the error has the text's index.
        """
        with decoding.naming_texts(batch.index):
            keys = self.keys(batch, seed, sample)
            return self.program.fetch(self.params, keys, self.inputs(batch))

    def inputs(self, batch: tasks.Batch) -> PyTree:
        """Returns the inputs of a batch for `program`, with previous outputs if it reads them.

        Raises:
          UsageError: the target cannot read these inputs.
        """
        self.plan.target.check_inputs(batch.inputs)
        if not self.plan.reads_previous or batch.previous is None:
            return batch.inputs
        return Revised(batch.inputs, jnp.asarray(batch.previous))

    def outputs(
        self, work: Iterable[tuple[tasks.Batch, int]], *, seed: int = 0
    ) -> Iterator[tuple[OutputT, float]]:
        """Yields the result of `decode` for each pair in `work`, in order.

        Args:
          work: pairs of a batch and a sample's index. If rows are refilled, pairs are read ahead.
          seed: the seed of all random draws.
        """
        work, ahead = itertools.tee(work)

        def given() -> Iterator[GivenBatch]:
            last = inputs = None
            for batch, sample in ahead:
                if batch is not last:  # samples of a text have the same inputs
                    last, inputs = batch, self.inputs(batch)
                yield GivenBatch(self.keys(batch, seed, sample), inputs, batch.index >= 0)

        outputs = self.way.outputs(self.params, given())
        for batch, _ in work:
            with decoding.naming_texts(batch.index):
                yield next(outputs)

    def steps(
        self, batch: tasks.Batch, *, seed: int = 0, sample: int = 0
    ) -> Iterator[DecodeOutput]:
        """Yields the output so far of a batch, on the host: first without a token, then after each
        target call. The last one is that of `decode`. It is for one device, and for no search.

        Args:
          batch: the texts.
          seed: the seed of all random draws.
          sample: the index of the sample, if each text has several.

        Raises:
          NonFiniteLogits: with the index of the text.
        """
        inputs = GivenBatch(self.keys(batch, seed, sample), self.inputs(batch), batch.index >= 0)
        with decoding.naming_texts(batch.index):
            yield from self._stepwise.steps(self.params, inputs)

    def text_of(self, tokens: Sequence[int], source: str) -> str:
        """Returns the text of an output's token ids; `source` is the text of its input."""
        return tasks.detokenize(self.vocabulary, tokens, source)

    def keys(self, batch: tasks.Batch, seed: int, sample: int = 0) -> Array:
        """Returns the random keys of a batch, [B]."""
        return decoding.row_keys(seed, jnp.asarray(batch.index), sample)

    def score(self, batch: tasks.Batch, **options: Any) -> np.ndarray:
        """Returns the log-probabilities of a batch's targets.

        Args:
          batch: texts and targets.
          **options: those of `decoding.score`.

        Returns:
          [B, N] float32 in nats, 0 after a target's last token.

        Raises:
          NonFiniteLogits: logits are NaN or infinite; the error has the text's index.
        """
        arguments = self.params["target"], *jax.tree.map(jnp.asarray, (batch.inputs, batch.targets))
        with decoding.naming_texts(batch.index):
            return jax.device_get(decoding.score(*arguments, target=self.plan.target, **options))

    @functools.cached_property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of checkpoints, tables and vocabulary, by name."""
        return fingerprints(self.plan.owned(), self.weights, self.vocabulary)

    def key(self: Engine) -> dict[str, object]:
        """Returns name -> value of all that the target's output for a text and a seed depends on.

        The values are plain. Two exact engines with equal keys write the same texts.
        """
        prints = self.fingerprints
        names = ("fingerprint of target", "fingerprint of vocabulary")
        return {
            "max_length": self.plan.max_length,
            "stop_ids": list(self.plan.stop_ids),
            "the vocabulary's size": self.vocabulary.vocab_size,
            **{name: prints[name] for name in names if name in prints},
            **flat("sampling", self.plan.sampling),
            **flat("target", self.plan.target),
        }

    def drafter_keys(self, drafters: Mapping[str, Drafter]) -> dict[str, dict[str, object]]:
        """Returns the `drafter_key` of each drafter by its name."""
        return {name: drafter_key(name, x, self.fingerprints) for name, x in drafters.items()}
