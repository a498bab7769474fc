"""A pair of models for notebooks: texts in, texts out."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from specdec import checkpoints, demo, generation, partitioning, roles, tables, tasks, terminal
from specdec.decoded import DecodedText
from specdec.decoding import naming_texts, row_keys, score
from specdec.drafters import Autoregressive
from specdec.plan import Plan
from specdec.program import Decoder, batch_shapes
from specdec.sampling import Greedy, check_ids
from specdec.schedules import Fixed
from specdec.types import Drafter, Model, PyTree, SamplingRule, Schedule, Table, Verifier
from specdec.verifiers import Block
from specdec.vocabulary import check_fit

SHORTEST_BUCKET = 32  # tokens; each longer one is twice as long


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoded(DecodedText):
    """One text and how it came about.

    log_prob: of the tokens, in nats at temperature 1.
    """

    input: str
    text: str
    log_prob: float


class InteractiveModel:
    """A target, a drafter and a vocabulary, ready for texts.

    >>> model = InteractiveModel.demo()  # or InteractiveModel(TARGET, DRAFT, gamma=5)
    >>> (output,) = model.predict(["translate English to German: The cat sleeps."])
    >>> model.stats.texts
    1

    A program is compiled for each input length in use, the next power of two, and kept. Texts are
    those of `specdec decode` with the same settings and seed.

    Args:
      target, draft: directories of checkpoints; without a draft and a drafter the target decodes
        alone.
      drafter: any drafter; None for `Autoregressive` with the draft. What it has parameters for is
        read from `draft`: one directory, or a dict of them by role.
      gamma: draft tokens per target call.
      schedule: how many tokens to draft, in place of `gamma`.
      schedule_table: the folder of the schedule's table, if it has one.
      sampling, verifier: as `specdec.decode` takes them; None for `Greedy()`, and for
        `Block()`, which is exact with any sampling.
      lossy: whether the output may have another law than the target's.
      vocabulary: `tasks.SentencePiece(path)` or `tasks.Bytes()`; None for the one saved with the
        target.
      lengths: the longest 'inputs' and 'targets', in tokens.
      batch_size: texts that are decoded together.
      dtype: 'float32' or 'bfloat16' to compute in; None as the checkpoints say.
      generation_settings: 'obey' the settings of generation in the target's checkpoint, or 'ignore'
        all but the ids that outputs start from and end in.

    Raises:
      CheckpointError, TaskError, ValueError: before any parameter is read, for what does not exist,
        cannot be read or does not go together.
    """

    def __init__(
        self,
        target: str | os.PathLike,
        draft: str | os.PathLike | Mapping[str, str | os.PathLike] | None = None,
        *,
        drafter: Drafter | None = None,
        gamma: int = 4,
        schedule: Schedule | None = None,
        schedule_table: str | os.PathLike | None = None,
        sampling: SamplingRule | None = None,
        verifier: Verifier | None = None,
        lossy: bool = False,
        vocabulary: tasks.VocabularyDefinition | None = None,
        lengths: Mapping[str, int] = {"inputs": 512, "targets": 128},
        batch_size: int = 1,
        dtype: str | None = None,
        generation_settings: str = "obey",
    ):
        generation.check_choice("generation_settings", generation_settings)
        sampling = sampling or Greedy()
        if drafter is None and draft is not None:
            path = draft["draft"] if isinstance(draft, Mapping) else draft
            drafter = Autoregressive(checkpoints.model_from(path, dtype), sampling)
        models = {"target": checkpoints.model_from(target, dtype), **roles.models_of(drafter)}
        self._paths = {"target": target, **_paths(drafter, draft)}
        for role in roles.tables_of(schedule):
            if schedule_table is None:
                raise ValueError(f"{schedule} has a table; give schedule_table")
            self._paths[role] = schedule_table
        spare = roles.spare_ids_of(drafter)
        self._vocabulary = _vocabulary(vocabulary, self._paths, models, spare)
        check_ids(sampling, self._vocabulary.vocab_size)
        text = checkpoints.text_model_from(target, needed=False)
        parts: dict[str, Any] = {"drafter": drafter, "verifier": None, "schedule": None}
        if drafter is not None:
            parts["verifier"] = verifier or Block()
            parts["schedule"] = schedule or Fixed(gamma)
        plan = Plan(
            models["target"],
            **parts,
            sampling=sampling,
            max_length=lengths["targets"],
            stop_ids=generation.stop_ids(text, self._vocabulary),
        )
        generation.check_start(plan, text)
        if generation_settings == "obey":
            plan = generation.obeyed(plan, text)
        if not (plan.exact or lossy):
            raise ValueError(f"{plan} does not keep the target's law; give lossy=True to have it")
        for role, table in plan.tables().items():
            tables.check_vocabulary(self._paths[role], table, self._vocabulary)
        plan = plan.laid_out(batch_size)
        self._plan, self._lengths, self._batch_size = plan, lengths, batch_size
        self._program = Decoder(plan)
        self._try()
        self._params = plan.params(
            {role: _read(owned, self._paths[role]) for role, owned in plan.owned().items()}
        )
        self.reset()

    @classmethod
    def demo(cls, **options: Any) -> InteractiveModel:
        """The pair that ships with the project; `options` as above."""
        defaults = {"gamma": 7, "lengths": {"inputs": 144, "targets": 48}}
        return cls(demo.path("target"), demo.path("draft"), **defaults | options)

    def predict(self, texts: Sequence[str], *, seed: int = 0) -> list[str]:
        """The output for each text."""
        return [decoded.text for decoded in self.decode(texts, seed=seed)]

    def decode(self, texts: Sequence[str], *, seed: int = 0) -> list[Decoded]:
        """The output for each text, and its statistics.

        A sampled output depends on the seed, on its place among the texts, and on nothing else.

        Raises:
          TaskError: a text that is too long.
        """
        if isinstance(texts, str):
            raise TypeError(f"texts is one text, {texts[:30]!r}; give a list of texts")
        batches = self._batches((text, None) for text in texts)
        return [decoded for batch in batches for decoded in self._decode(batch, seed)]

    def score(self, inputs: Sequence[str], targets: Sequence[str]) -> list[float]:
        """The log-probability that the target gives each of `targets`, EOS included, in nats.

        Raises:
          TaskError: a text that is too long.
        """
        if len(inputs) != len(targets):
            raise ValueError(f"{len(inputs)} inputs but {len(targets)} targets; give pairs")
        scores = []
        for batch in self._batches(zip(inputs, targets, strict=True)):
            assert batch.targets is not None
            texts, outputs = jnp.asarray(batch.inputs), jnp.asarray(batch.targets)
            params, target = self._params.target, self._plan.target
            with naming_texts(batch.index):
                log_probs = score(params, texts, outputs, target=target)
            scores += np.sum(log_probs, axis=1)[: len(batch.input_texts)].tolist()
        return scores

    def evaluate(
        self,
        pairs: Iterable[tuple[str, str]],
        metric_fns: Sequence[Callable[[list[str], list[str]], Mapping[str, Any]]] = (tasks.bleu,),
        *,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Returns metrics, in seqio's form (targets, predictions) -> {name: value}, of the outputs
        for the inputs of `pairs`, each (input, target).

        Raises:
          ValueError: there are no pairs.
        """
        pairs = list(pairs)
        if not pairs:
            raise ValueError("pairs is empty; give one (input, target) or more")
        inputs, targets = ([pair[side] for pair in pairs] for side in (0, 1))
        predictions = self.predict(inputs, seed=seed)
        values: dict[str, Any] = {}
        for metric in metric_fns:
            values |= metric(targets, predictions)
        return values

    def paint(self, decoded: Decoded) -> str:
        """The text in the marks and colours of a terminal: who wrote what (`terminal.legend`)."""
        row = decoded.tokens, decoded.proposed, decoded.drafted, decoded.accepted
        return terminal.paint(terminal.pieces(terminal.origins(*row), self._text_of))

    def reset(self) -> None:
        """Begins the statistics anew."""
        self.stats = terminal.Summary()
        self._compiled_before = self._program.seconds

    def _text_of(self, tokens: Sequence[int]) -> str:
        return tasks.detokenize(self._vocabulary, tokens)

    def _batches(self, pairs: Iterable[tuple[str, str | None]]) -> Iterator[tasks.Batch]:
        return tasks.text_batches(
            pairs,
            self._vocabulary,
            self._lengths,
            batch_size=self._batch_size,
            buckets=_buckets(self._lengths["inputs"]),
        )

    def _try(self) -> None:
        """Traces the program of the shortest texts, which is where a combination that cannot work
        shows."""
        owned = self._plan.owned().items()
        shapes = {role: _shapes(model, self._paths[role]) for role, model in owned}
        longest = self._lengths["inputs"]
        batch = batch_shapes(self._batch_size, min([*_buckets(longest), longest]))
        self._program.lower(self._plan.params(shapes), *batch)

    def _decode(self, batch: tasks.Batch, seed: int) -> Iterator[Decoded]:
        keys = row_keys(seed, jnp.asarray(batch.index))
        with naming_texts(batch.index):
            output, seconds = self._program.fetch(self._params, keys, batch.inputs)
        self.stats.seconds += seconds
        self.stats.compile_seconds = self._program.seconds - self._compiled_before
        for index, text in enumerate(batch.input_texts):
            log_prob = float(output.log_probs[index].sum())
            shown = self._text_of(output.row(index).tokens)
            one = Decoded.of(output, index, input=text, text=shown, log_prob=log_prob)
            self.stats.texts += 1
            self.stats.tokens += len(one.tokens)
            self.stats.drafted += one.drafted
            self.stats.accepted += one.accepted
            self.stats.broken_drafts += one.broken_drafts
            yield one


def _paths(drafter: Drafter | None, draft: Any) -> dict[str, Any]:
    """Where the parameters are that a drafter has, by role."""
    own = list(roles.owned_by(drafter))
    given = draft if isinstance(draft, Mapping) else dict.fromkeys(own[:1], draft)
    if missing := [role for role in own if given.get(role) is None]:
        raise ValueError(
            f"{type(drafter).__name__} has parameters for {', '.join(own)} and draft is {draft!r}; "
            f"give the directory of {missing[0]}, of several a dict by role"
        )
    return {role: given[role] for role in own}


def _shapes(owned: Model | Table, path: str | os.PathLike) -> PyTree:
    """Of what `_read` gives."""
    if isinstance(owned, Table):
        return tables.shapes(path, owned)
    return partitioning.abstract(owned, None)


def _read(model: Model | Table, path: str | os.PathLike) -> PyTree:
    """A model's parameters, in its dtype and layout, or a table."""
    if isinstance(model, Table):
        return tables.load(path, model)
    stored = checkpoints.load(path, config=model.config, dtype=model.dtype)
    return model.from_stored(stored)


def _buckets(longest: int) -> tuple[int, ...]:
    """Input lengths below the longest."""
    lengths = (SHORTEST_BUCKET << doublings for doublings in range(longest.bit_length()))
    return tuple(length for length in lengths if length < longest)


def _vocabulary(
    definition: tasks.VocabularyDefinition | None,
    paths: Mapping[str, str | os.PathLike],
    models: Mapping[str, Model],
    spare: Mapping[str, int],
) -> Any:
    """The vocabulary of all models; refuses models of another one."""
    if definition is None:
        recorded = checkpoints.vocabulary_from(paths["target"])
        if recorded is None:
            raise ValueError(
                f"no vocabulary was saved with {paths['target']}; give one, "
                "vocabulary=tasks.SentencePiece('FILE') or tasks.Bytes()"
            )
        definition = tasks.recorded_vocabulary(*recorded)
    vocabulary = tasks.for_texts(definition)
    for role, model in models.items():
        check_fit(vocabulary, model, role, paths[role], spare.get(role, 0))
    return vocabulary
