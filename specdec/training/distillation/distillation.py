"""Makes a drafter from a target and texts, then tunes and certifies it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

import jax

from specdec import checkpoints, tasks
from specdec.certificate import certifying
from specdec.certificate.certifying import Certificate
from specdec.common import hosts, records
from specdec.common.statistics import Estimate
from specdec.common.values import (
    Checked,
    PositiveFloat,
    PositiveInt,
    Rule,
    UsageError,
    is_integer,
    is_word,
    one_line,
)
from specdec.measure.evaluation import Evaluation
from specdec.measure.prediction_files import PredictionsFolder
from specdec.models import families
from specdec.models.contract.model import Model
from specdec.models.sizes.kept_parts import Trim, most_frequent
from specdec.predict.search import TOKENS, Search
from specdec.sampling import unprocessed
from specdec.schedules.schedule import Schedule
from specdec.texts.measured_run import Run, Variant

if TYPE_CHECKING:
    from specdec.training import Align

RATE = 1e11  # operations a second of two CPU cores, about

Split = Annotated[str, Rule(is_word, "the name of a split")]
Steps = Annotated[int, Rule(lambda n: is_integer(n, 2), "2 or more, for the rate to fall")]


@dataclasses.dataclass(frozen=True)
class Distillation(Checked):
    """A recipe for a drafter; gin builds it.

    Args:
      texts: the split on whose inputs the target writes the outputs that the drafter learns.
      held_out: the split for alpha during training, and for tuning.
      layers: the number of layers of the drafter's decoder. They start as the target's first
        layers, and read the output of the target's encoder.
      head: how many ids the drafter may predict, the most frequent in the target's outputs; None
        for all. The target can still produce the others.
      steps: the number of updates.
      batch_size: texts in each update, and in each batch in which the target writes.
      learning_rate: the highest rate; the rate grows for a tenth of the steps, then falls to 0.
      divergences: the losses of `training.Align`, at the temperature of the run, or at 1 for a
        greedy run.
      top: the number of the target's likeliest ids that are stored of each token, once for all
        epochs, in draft/laws; see `training.Align`. None runs the target in each update.
    """

    texts: Split
    held_out: Split
    layers: PositiveInt
    head: PositiveInt | None
    steps: Steps
    batch_size: PositiveInt
    learning_rate: PositiveFloat
    divergences: Mapping[str, float | tuple[float, float]]
    top: PositiveInt | None = None


class Settings(Protocol):
    """The gin files and flags of the user."""

    @property
    def files(self) -> Sequence[str]: ...

    def run(
        self,
        more: Mapping[str, object],
        *,
        files: Sequence[str] = (),
        lines: str | None = None,
        limit: int | None = None,
    ) -> Variant:
        """Returns the run of these settings, overridden by further macros and files."""
        ...

    def text(self, more: Mapping[str, object], files: Sequence[str]) -> str:
        """Returns these settings and more, as a gin file."""
        ...


class Distilled(NamedTuple):
    """A pair of a target and the drafter that was made for it."""

    draft: Path  # the directory of the drafter's checkpoint
    pair: Path  # the gin file of the pair, for other commands
    speedup: Estimate  # the speed relative to the target alone, predicted from held-out texts
    schedule: Schedule  # the schedule for that speed-up
    certificate: Certificate  # the exactness certificate

    @property
    def pays(self) -> bool:
        """Whether drafting is faster than the target alone on this machine."""
        return self.speedup.value > 1

    def summary(self) -> str:
        """Returns one sentence with the speed-up, and the command that uses the pair."""
        times = f"{self.speedup.value:.2f} times as fast"
        interval = f"95 % interval {self.speedup.interval()}"
        command = f"specdec decode --gin_file={shlex.quote(str(self.pair))}"
        if self.pays:
            return (
                f"Drafting with {self.schedule} is predicted to be {times} as the target alone "
                f"({interval}): {command}"
            )
        return (
            f"The target alone is faster on this machine (the best draft is {times}, {interval}), "
            f"so this command decodes without the drafter: {command}\nFor a drafter that pays, "
            "give more inputs or more --gin.DRAFT_STEPS in another --output_dir, or a larger target"
        )


class Distilling(NamedTuple):
    """A recipe for a run that is ready to begin, or to be resumed, in a folder."""

    settings: Settings
    recipe: Distillation
    variant: Variant  # the target alone
    definition: tasks.VocabularyDefinition  # of its vocabulary
    objective: Align  # the drafter's training objective
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
        """Returns a recipe after checking it and claiming its folder."""
        _check(variant.run, recipe)
        objective = _objective(variant.run, recipe)
        folder.mkdir(parents=True, exist_ok=True)
        hosts.from_first(lambda: records.hold(folder / "distill.json", "--output_dir"))
        about = {"gin": variant.settings, **dataclasses.asdict(recipe)}
        records.claim(
            folder,
            folder / "distill.json",
            records.as_json(about),
            begun=next(iter(folder.glob("texts/*")), None),
            instead="--output_dir",
        )
        return cls(settings, recipe, variant, definition, objective, folder)

    def distill(self, say: Callable[[str], None], started: Callable[[str], None]) -> Distilled:
        """Makes the drafter, and returns the pair; `pair.gin` has its settings."""
        if not hosts.is_first():
            say = started = lambda _: None
        recipe, folder, steps = self.recipe, self.folder, TimeLeft(self._expected())
        say(self._asked())
        say(steps.begin("write", "the target writes"))
        for split in (recipe.texts, recipe.held_out):
            self._write(split)
        say(steps.begin("learn", "the drafter learns"))
        self._train(say)
        with _own(folder) as results:
            return self._tried(results, steps, say, started)

    def _tried(
        self,
        results: Path,
        steps: TimeLeft,
        say: Callable[[str], None],
        started: Callable[[str], None],
    ) -> Distilled:
        """Tunes and certifies the drafter, writes to `results`, and returns the pair."""
        recipe, folder = self.recipe, self.folder
        draft, pair, tuned = folder / "draft" / "export", results / "pair.gin", results / "tuned"
        drafter = {"DRAFT_CHECKPOINT_PATH": os.path.abspath(draft)}
        say(steps.begin("tune", "how long to draft"))
        held_out = {**drafter, "SPLIT": recipe.held_out}
        search = Search.of([self.settings.run(held_out, lines="acceptance")], tuned).run()
        say("\n".join(search.lines()))
        search.write(tuned, self.settings.files)
        recommended = [str(tuned / "tuned.gin")]
        records.write(pair, self.settings.text(drafter, recommended))
        certified = "the certificate"
        if not search.pays:
            certified += " of the drafter, for machines on which it pays (the pair is written: "
            certified += "Ctrl-C leaves it out)"
        say(steps.begin("certify", certified))
        files = recommended * search.pays  # otherwise the drafter is certified as the user set it
        run = self.settings.run(drafter, files=files, limit=certifying.LIMIT)
        certificate = certifying.certify(run, say, started, results / "checks.jsonl")
        best = search.best
        speedup, schedule = best.speedup(best.best), best.best.candidate.schedule
        return Distilled(draft, folder / pair.name, speedup, schedule, certificate)

    def _asked(self) -> str:
        """Returns a line with the first input, and config.json's prefixes if it lacks them."""
        run = self.variant.run
        text = checkpoints.text_model_from(run.checkpoint_path, needed=False)
        batch, known = next(run.batches(everywhere=True), None), tuple(text.prefixes.values())
        if batch is None:
            raise UsageError(f"split {run.data.split!r} has no examples; choose another one")
        line = f"the target's first input: {(first := batch.input_texts[0])!r}"
        if known and not first.startswith(known):
            line += f"; it has no prefix of config.json ({', '.join(map(repr, known))})"
        return line

    def _expected(self) -> dict[str, float]:
        """Returns the estimated seconds of each step on two CPU cores; 0 for finished steps."""
        run, recipe, folder = self.variant.run, self.recipe, self.folder
        target: Any = run.plan.target.stored()  # type: ignore[attr-defined]
        size = checkpoints.parameter_count(target)
        drafter = checkpoints.parameter_count(self._model(target))
        tokens = sum(run.lengths.values()) / 3  # of a text, about
        splits, limit = (recipe.texts, recipe.held_out), run.data.limit or math.inf
        counts = [min(tasks.count(run.data.task, split) or 0, limit) for split in splits]
        learned = recipe.steps * recipe.batch_size + 8 * counts[1]
        seconds = {
            "write": 10 + sum(counts) * tokens * 2 * size / RATE,
            "learn": 30 + learned * tokens * (2 * size + 6 * drafter) / RATE,
            "tune": 60 + min(counts[1] * tokens, TOKENS) * 2 * size / RATE,
            "certify": 120 + certifying.LIMIT * tokens * 40 * size / RATE,
        }
        done = {
            "write": folder / "texts" / recipe.held_out / "metrics.json",
            "learn": folder / "tuned",
            "tune": folder / "pair.gin",
        }
        return seconds | {name: 0.0 for name, path in done.items() if path.exists()}

    def _write(self, split: str) -> None:
        """Decodes the inputs of a split with the target alone, into the folder texts/SPLIT."""
        macros = {"DRAFTER": None, "SPLIT": split, "BATCH_SIZE": self.recipe.batch_size}
        variant = self.settings.run(macros, lines="eval")
        evaluating = Evaluation.without_metrics(variant)
        share = variant.run.placement.share()
        folder = PredictionsFolder(str(self.folder / "texts" / split), variant.settings, share[:2])
        if share.first:
            folder.hold(alone=jax.process_count() == 1)
        evaluating.write(folder)
        hosts.exchanged(None)  # the texts of all hosts are there

    def _model(self, target: Model, head_ids: tuple[int, ...] | None = None) -> Model:
        """Returns the drafter's model."""
        layers = tuple(range(self.recipe.layers))
        shared = families.trimming_of(target.config).has_encoder
        parts = Trim(layers, shared_encoder=shared, head_ids=head_ids)
        return families.model_of(families.resized(target.config, parts))

    def _train(self, say: Callable[[str], None]) -> None:
        """Trains the drafter on the target's outputs."""
        from specdec import training

        run, recipe = self.variant.run, self.recipe
        texts = self.folder / "texts"
        target: Any = run.plan.target.stored()  # type: ignore[attr-defined]
        head_ids = None
        if recipe.head is not None:
            head_ids = most_frequent(tasks.token_counts(str(texts / recipe.texts)), recipe.head)
        written = {x: str(texts / x) for x in (recipe.texts, recipe.held_out)}
        longest, most = max(map(tasks.longest_output, written.values())), run.plan.max_length
        if longest == most:
            say(
                f"the longest output has {most} tokens, the most that are allowed; if outputs "
                "are cut, begin in another --output_dir with a larger --max_length"
            )
        name = f"{tasks.get_task(run.data.task).name}_written"
        task = tasks.predictions_task(name, written, self.definition)
        rate = training.LearningRate(
            recipe.learning_rate, max(1, recipe.steps // 10), decay="linear", end=recipe.steps
        )
        run_of_drafter = training.TrainRun(
            model=self._model(target, head_ids),
            task=task,
            lengths={**run.data.lengths, "targets": min(-(-longest // 8) * 8, most)},
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
            placement=run.placement,
        )
        try:
            training.train(run_of_drafter, self.folder / "draft")
        except training.TrainingError as error:
            raise UsageError(str(error)) from error


@contextlib.contextmanager
def _own(folder: Path) -> Iterator[Path]:
    """Yields the folder on the first host, and a temporary copy of its results on other hosts."""
    with tempfile.TemporaryDirectory() as copy:
        results = folder if hosts.is_first() else Path(copy)
        if results is not folder:
            for part in [*folder.glob("tuned/*"), *folder.glob("checks.jsonl*")]:
                (there := results / part.relative_to(folder)).parent.mkdir(exist_ok=True)
                shutil.copy(part, there)
        hosts.exchanged(None)  # nothing changes until all have their copies
        yield results


class TimeLeft:
    """Estimates the time that is left for the steps of a recipe."""

    def __init__(
        self, expected: Mapping[str, float], clock: Callable[[], float] = time.perf_counter
    ):
        """Starts the clock."""
        self._expected, self._clock = expected, clock
        self._start = clock()

    def begin(self, name: str, about: str) -> str:
        """Returns the line that announces a step, after a blank line."""
        names, seconds = list(self._expected), list(self._expected.values())
        number, elapsed = names.index(name), self._clock() - self._start
        before = sum(seconds[:number])
        minutes = max(1, round(sum(seconds[number:]) * (elapsed / before if before else 1) / 60))
        duration = f"{minutes} minute{'s' * (minutes > 1)}"
        if minutes >= 120:
            duration = f"{round(minutes / 60)} hours"
        return f"\nstep {number + 1} of {len(names)}: {about}, about {duration} left"


def _check(run: Run, recipe: Distillation) -> None:
    """Raises UsageError for settings that would fail later."""
    config: Any = run.plan.target.config  # type: ignore[attr-defined]
    with one_line():
        families.trimming_of(config)
    if recipe.layers > (there := config.num_decoder_layers):
        raise UsageError(f"DRAFT_LAYERS is {recipe.layers} but the target has {there}; give fewer")
    if recipe.top is not None and recipe.top >= (ids := config.vocab_size):
        raise UsageError(f"DRAFT_TOP is {recipe.top} and the target has {ids} ids; give fewer")
    if run.data.task is None:
        raise UsageError("there is no task; set TASK in a gin file")
    if jax.process_count() > 1 and run.placement.mesh is None:
        raise UsageError(
            "--distributed makes one drafter over the devices of all hosts, and there is no mesh; "
            "give --gin.NUM_PARTITIONS=1 to divide the rows of a batch, or more for the model too"
        )
    known = tasks.get_task(run.data.task).splits
    for split in (recipe.texts, recipe.held_out, run.data.split):
        if split not in known:
            raise UsageError(f"the task has no split {split!r}; give one of {', '.join(known)}")
    if recipe.texts == recipe.held_out:
        raise UsageError(f"TEXTS and HELD_OUT are both {recipe.texts!r}; give two splits")


def _objective(run: Run, recipe: Distillation) -> Align:
    """Returns the drafter's training objective, at the temperature of the run."""
    from specdec import training  # optax, which few commands need

    sampling: Any = unprocessed(run.plan.sampling)
    temperature = 1.0 if sampling.greedy else sampling.temperature
    with one_line():
        return training.Align(recipe.divergences, temperature, top=recipe.top)
