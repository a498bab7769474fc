"""A drafter made of a target and texts, tuned and certified."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import jax

from specdec import tasks
from specdec.common import records
from specdec.common.values import (
    Checked,
    PositiveFloat,
    PositiveInt,
    Rule,
    UsageError,
    is_integer,
    is_word,
)
from specdec.instrument import certifying, evaluation
from specdec.instrument.certifying import Certificate
from specdec.instrument.evaluation import Evaluation
from specdec.instrument.prediction_files import PredictionsFolder
from specdec.instrument.runs import Run, Variant
from specdec.instrument.search import Search
from specdec.models import families
from specdec.models.kept_parts import Trim, most_frequent

Split = Annotated[str, Rule(is_word, "the name of a split")]
Steps = Annotated[int, Rule(lambda n: is_integer(n, 2), "2 or more, for the rate to fall")]


@dataclasses.dataclass(frozen=True)
class Distillation(Checked):
    """A recipe for a drafter; gin builds it.

    texts: the split whose inputs the target answers, for the drafter to learn from.
    held_out: the split for alpha while training, and for tuning.
    layers: of the drafter's decoder; they begin as the target's first ones, and read the output of
      its encoder.
    head: how many ids the drafter may say, the most frequent in what the target wrote; None for
      all. The target says the others all the same.
    steps, batch_size: updates, and texts in each; the target writes as many texts together.
    learning_rate: the highest; it grows for a tenth of the steps, and then falls to 0.
    divergences: see `training.Align`. Laws are compared at the temperature of the run, a greedy
      run's at 1.
    """

    texts: Split
    held_out: Split
    layers: PositiveInt
    head: PositiveInt | None
    steps: Steps
    batch_size: PositiveInt
    learning_rate: PositiveFloat
    divergences: Mapping[str, Any]


class Settings(Protocol):
    """The gin files and flags that the user has given.

    files: the names of the gin files.
    """

    @property
    def files(self) -> Sequence[str]: ...

    def run(
        self,
        more: Mapping[str, Any],
        *,
        files: Sequence[str] = (),
        lines: str | None = None,
        limit: int | None = None,
    ) -> Variant:
        """Returns the run of these settings, and of more macros and files, which override.

        Args:
          lines: the kind of lines that are written of it.
          limit: the most texts that it may have, None for all of its own.
        """
        ...

    def text(self, more: Mapping[str, Any], files: Sequence[str]) -> str:
        """Returns these settings and more, as a gin file."""
        ...


class Distilled(NamedTuple):
    """A pair of a target and the drafter that was made of it.

    pays: whether it is faster than the target alone, here.
    """

    pays: bool
    certificate: Certificate


class Distilling(NamedTuple):
    """A recipe for a run that is ready to begin, or to go on, in a folder.

    variant: the target alone.
    definition: of its vocabulary.
    objective: what the drafter learns by.
    """

    settings: Settings
    recipe: Distillation
    variant: Variant
    definition: tasks.VocabularyDefinition
    objective: Any
    folder: Path

    @classmethod
    def of(
        cls,
        settings: Settings,
        recipe: Distillation,
        variant: Variant,
        definition: tasks.VocabularyDefinition,
        folder: Path,
    ) -> Distilling:
        """Returns what is ready.

        Raises:
          UsageError: something that would fail late.
          RecordsError: the folder is of another recipe or run.
        """
        _check(variant.run, recipe)
        objective = _objective(variant.run, recipe)
        folder.mkdir(parents=True, exist_ok=True)
        about = {"settings": variant.settings, **dataclasses.asdict(recipe)}
        records.claim(
            folder,
            folder / "distill.json",
            records.as_json(about),
            begun=next(iter(folder.glob("texts/*")), None),
            instead="--output_dir",
        )
        return cls(settings, recipe, variant, definition, objective, folder)

    def distill(self, say: Callable[[str], None], started: Callable[[str], None]) -> Distilled:
        """Makes the drafter, and returns what became of it; `pair.gin` has its settings.

        Args:
          say: is told what happens, a line or several.
          started: is told the name of each check of the certificate before it begins.
        """
        recipe, folder = self.recipe, self.folder
        for split in (recipe.texts, recipe.held_out):
            say(f"\n# what the target writes, {split}")
            self._write(split, say)
        say("\n# the drafter learns")
        self._train()
        say("\n# how long to draft")
        drafter = {"DRAFT_CHECKPOINT_PATH": os.path.abspath(folder / "draft" / "export")}
        tuned = folder / "tuned"
        held_out = {**drafter, "SPLIT": recipe.held_out}
        found = Search.of([self.settings.run(held_out, lines="acceptance")], tuned).run()
        say("\n".join(found.lines()))
        text = found.write(tuned, self.settings.files)
        say(f"\n{tuned / 'tuned.gin'}:\n{text}".rstrip("\n"))
        files = [str(tuned / "tuned.gin")] * found.pays
        records.write(folder / "pair.gin", self.settings.text(drafter, files))
        say("\n# the certificate")
        pair = self.settings.run(drafter, files=files, limit=certifying.LIMIT)
        return Distilled(found.pays, certifying.certify(pair, say, started))

    def _write(self, split: str, say: Callable[[str], None]) -> None:
        """Lets the target answer the inputs of a split."""
        own = {"DRAFTER": None, "SPLIT": split, "BATCH_SIZE": self.recipe.batch_size}
        one = self.settings.run(own, lines="eval")
        names = None if evaluation.own_metrics(one.run) else ["bleu"]
        evaluating = Evaluation.of(one, names)
        share = one.run.placement.share()
        folder = PredictionsFolder(str(self.folder / "texts" / split), one.settings, share[:2])
        with folder.locked(alone=jax.process_count() == 1):
            report = evaluating.write(folder)
        assert report is not None, "one host writes all"
        say("\n".join([*evaluation.lines(report), f"figures in {folder.metrics}"]))

    def _train(self) -> None:
        """Trains the drafter on what the target wrote."""
        from specdec import training

        run, recipe = self.variant.run, self.recipe
        texts = self.folder / "texts"
        target: Any = run.plan.target.stored()  # type: ignore[attr-defined]
        kept = Trim(tuple(range(recipe.layers)), shared_encoder=True)
        if recipe.head is not None:
            counts = tasks.token_counts(str(texts / recipe.texts))
            kept = dataclasses.replace(kept, head_ids=most_frequent(counts, recipe.head))
        written = {x: str(texts / x) for x in (recipe.texts, recipe.held_out)}
        task = tasks.predictions_task("distilled", written, self.definition)
        rate = training.LearningRate(
            recipe.learning_rate, max(1, recipe.steps // 10), decay="linear", end=recipe.steps
        )
        made = training.TrainRun(
            model=families.model_of(families.resized(target.config, kept)),
            task=task,
            lengths={**run.data.lengths, "targets": run.plan.max_length},
            steps=recipe.steps,
            batch_size=recipe.batch_size,
            optimizer=training.Adafactor(rate),
            objective=self.objective,
            target=target,
            target_path=run.checkpoint_path,
            initial_path=run.checkpoint_path,
            split=recipe.texts,
            seed=run.data.seed,
            evaluation_split=recipe.held_out,
            best_by=f"mbsu_5{'_greedy' if run.plan.sampling.greedy else ''}",
            evaluate_every=max(1, recipe.steps // 8),
            checkpoint_every=max(1, recipe.steps // 8),
        )
        try:
            training.train(made, self.folder / "draft")
        except training.TrainingError as error:
            raise UsageError(str(error)) from error


def _check(run: Run, recipe: Distillation) -> None:
    """Raises UsageError for what would fail late."""
    config: Any = run.plan.target.config  # type: ignore[attr-defined]
    try:
        families.trimming_of(config)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if recipe.layers > (there := config.num_decoder_layers):
        raise UsageError(f"DRAFT_LAYERS is {recipe.layers} but the target has {there}; give fewer")
    if run.data.task is None:
        raise UsageError("there is no task; set TASK in a gin file")
    known = tasks.get_task(run.data.task).splits
    for split in (recipe.texts, recipe.held_out, run.data.split):
        if split not in known:
            raise UsageError(f"the task has no split {split!r}; give one of {', '.join(known)}")
    if recipe.texts == recipe.held_out:
        raise UsageError(f"TEXTS and HELD_OUT are both {recipe.texts!r}; give two splits")


def _objective(run: Run, recipe: Distillation) -> Any:
    """Returns what the drafter learns by, at the temperature of the run."""
    from specdec import training  # optax, which few commands need

    sampling: Any = run.plan.sampling
    try:
        return training.Align(recipe.divergences, 1.0 if sampling.greedy else sampling.temperature)
    except ValueError as error:
        raise UsageError(str(error)) from error
