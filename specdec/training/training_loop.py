"""The training loop: steps that are logged, checkpointed and resumable at any step."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from specdec import checkpoints, tasks
from specdec.checkpoints.text_model import Kept
from specdec.checkpoints.vocabulary_fit import check_fit
from specdec.common import hosts
from specdec.common.terminal import counted
from specdec.common.values import one_line
from specdec.models.contract.inputs import check_room, lengths_of
from specdec.models.contract.model import Model
from specdec.models.heads import HeadedTarget
from specdec.training import laws
from specdec.training.division import Division
from specdec.training.folder import Folder
from specdec.training.loss import Pairs, Sums
from specdec.training.training_batches import Batches, MakeInputs, TokenPair, pack, read_split
from specdec.training.training_error import TrainingError
from specdec.training.training_run import TrainRun
from specdec.training.updates import (
    Recipe,
    State,
    abstract_state,
    evaluate_step,
    init,
    over_devices,
    train_step,
)
from specdec.types import PyTree


def train(run: TrainRun, output_dir: str | os.PathLike, in_force: Callable[[], str] = str) -> State:
    """Trains a model, or resumes from the latest checkpoint in `output_dir`; see `folder`.

    On the same machine with the same versions, a stopped and resumed run computes the same numbers
    bit for bit. An interrupt or SIGTERM ends the current step, saves, and then has its usual
    effect: Ctrl-C raises KeyboardInterrupt.

    Args:
      run: the settings of the run.
      output_dir: the directory of the run.
      in_force: returns the text of a gin file with the settings, which is saved; '' for none.

    Returns:
      The state after the last step.

    Raises:
      TrainingError: a task or directory cannot be used, or a loss is not finite.
      records.RecordsError: the directory belongs to another run.
      tasks.TaskError: there is no such task or split, or its data are not on this machine.
    """
    run = over_devices(run)
    with Division(run.placement.mesh).entered():
        return _trained(run, output_dir, in_force)


def _trained(run: TrainRun, output_dir: str | os.PathLike, in_force: Callable[[], str]) -> State:
    """Trains a run that is the result of `over_devices`."""
    text = _text(run)
    tasks.check_lengths(run.task, run.lengths)
    batches = Batches(
        run.task,
        run.split,
        run.lengths,
        batch_size=run.batch_size,
        seed=run.seed,
        buckets=run.buckets,
        pad_id=run.pad_id,
        make=_maker(run),
    )
    evaluation, target_params = _evaluation(run), _loaded(run, run.target_path, run.target)
    reference = _loaded(run, run.reference_path, run.model)
    folder = Folder(output_dir, _settings(run, batches[0]), in_force)
    with folder, _interrupts() as interrupted:
        recipe, state = Recipe.of(run), init(run)
        if folder.step is not None:
            state = folder.restore(abstract_state(recipe))
        step = int(state.step)
        folder.cut_log(step)
        with contextlib.closing(Progress(step, run.steps, run.log_every)) as progress:
            if step:
                begun = f"{folder.path} holds a run of {counted(step, 'step')}"
                progress.say(f"{begun}; going on with it")
            if (top := run.objective.top) is not None:
                stored = _laws(run, top, target_params, folder.path, progress.say)
                stream = (stored.added_to(batches[k]) for k in itertools.count(step))
            else:
                stream = (batches[k] for k in itertools.count(step))
            updates = _updates(run, state, target_params, reference, stream)
            for state, update in updates:
                step = update.step
                folder.log({name: getattr(update, name) for name in LOGGED})
                progress.update(*update)
                if evaluation and (step % run.evaluate_every == 0 or step == run.steps):
                    if _evaluate(
                        run, state.params, target_params, evaluation, step, folder, progress
                    ):
                        _export(run, state.params, step, folder, text)
                if interrupted():
                    break
                if step % run.checkpoint_every == 0:
                    _save(run, state, step, folder, text)
        _save(run, state, step, folder, text)
        if number := interrupted():
            signal.raise_signal(number)  # the handler that was set before training acts now
            raise KeyboardInterrupt
    return state


class Update(NamedTuple):
    """The figures of one step."""

    step: int  # from 1
    loss: float  # nats per target token, smoothed
    accuracy: float  # of the argmax
    rate: float  # the learning rate
    tokens: int  # of inputs and targets, without padding


LOGGED = ("step", "loss", "accuracy", "rate")


def _updates(
    run: TrainRun, state: State, target_params: PyTree, reference: PyTree, batches: Iterator[Pairs]
) -> Iterator[tuple[State, Update]]:
    """Yields the state and figures after each remaining step; the next step reuses its memory."""
    first = int(state.step)
    pairs, recipe = next(batches), Recipe.of(run)
    for step in range(first + 1, run.steps + 1):
        tokens = int(lengths_of(pairs.inputs, run.pad_id).sum())
        tokens += int((pairs.targets != run.pad_id).sum())
        placed = recipe.layout.rows(pairs)
        state, sums = train_step(state, placed, target_params, reference, recipe=recipe)
        pairs = next(batches)  # made while the device computes
        loss, accuracy = _means([sums])
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} at step {step}; lower the learning rate or set clip_norm"
            )
        rate = float(run.optimizer.learning_rate(step - 1))
        yield state, Update(step, loss, accuracy, rate, tokens)


def _evaluate(
    run: TrainRun,
    params: PyTree,
    target_params: PyTree,
    batches: list[Pairs],
    step: int,
    folder: Folder,
    progress: Progress,
) -> bool:
    """Evaluates and logs; returns whether the figure `run.best_by`, if set, is the best so far."""
    recipe = Recipe.of(run)
    placed = (recipe.layout.rows(pairs) for pairs in batches)
    # Each batch is waited for: XLA's CPU client has 32 in flight at most, and several hosts that
    # reach this number may wait for each other for ever.
    sums = [
        jax.device_get(evaluate_step(params, pairs, target_params, recipe=recipe))
        for pairs in placed
    ]
    loss, accuracy = _means(sums)
    split, figures = run.evaluation_split, {"loss": loss, "accuracy": accuracy}
    says = f"loss {loss:.4f}, accuracy {accuracy:.3f}"
    ratio = _size(params) / max(_size(target_params), 1)
    figures |= run.objective.figures((loss, accuracy), ratio)
    if "alpha" in figures:
        says += f", alpha {figures['alpha']:.3f}"
    best = run.best_by and folder.is_best(f"{split}_{run.best_by}", figures[run.best_by])
    folder.log({"step": step, **{f"{split}_{name}": x for name, x in figures.items()}})
    progress.say(f"step {step:,}, {split} {says}{', the best so far' if best else ''}")
    return bool(best)


def _size(params: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _save(run: TrainRun, state: State, step: int, folder: Folder, text: Kept) -> None:
    folder.save(step, state)
    if run.best_by is None:
        _export(run, state.params, step, folder, text)


def _export(run: TrainRun, params: PyTree, step: int, folder: Folder, text: Kept) -> None:
    """Exports a checkpoint of the model, or one of each part of a HeadedTarget."""
    if not isinstance(run.model, HeadedTarget):
        return folder.export(step, params, run.model.config, text)
    for name, part in run.model.parts.items():
        folder.export(step, params[name], part.config, text, name)


def _means(batches: list[Sums]) -> tuple[float, float]:
    """Returns loss in nats and accuracy, per token."""
    loss, correct, tokens = (sum(column) for column in zip(*jax.device_get(batches), strict=True))
    return float(loss / max(tokens, 1)), float(correct / max(tokens, 1))


def _text(run: TrainRun) -> Kept:
    """Returns arguments of `checkpoints.save`: the task's vocabulary, if it is a file.

    For decoder-only models and Whispers, they include the generation settings in its directory.
    Raises TrainingError if the task and the models do not fit.
    """
    vocabulary = tasks.get_task(run.task).vocabulary
    with one_line(kind=TrainingError):
        check_fit(vocabulary, run.model, "model")
        if run.target is not None:
            check_fit(vocabulary, run.target, "target")
        run.objective.check(run.model, vocabulary.vocab_size)
        check_room({"model": run.model}, run.lengths["inputs"], run.lengths["targets"])
    file = tasks.file_of(vocabulary)
    if not file or not os.path.isfile(file):
        return {}
    if tasks.tokenization_of(vocabulary) is not None:
        saved = Path(file).parent  # with the tokenizer's other files
        if tasks.has_prompts(vocabulary) or tasks.is_sound(vocabulary):
            return checkpoints.text_model_from(saved).kept()
        return {"vocabulary": checkpoints.vocabulary_from(saved)}
    return {"vocabulary": checkpoints.Vocabulary(Path(file), vocabulary.extra_ids)}


def _loaded(run: TrainRun, path: str | None, model: Model | None) -> PyTree:
    return () if path is None or model is None else run.placement.read(model, path)


def _laws(
    run: TrainRun, top: int, target_params: PyTree, folder: Path, say: Callable[[str], None]
) -> laws.StoredLaws:
    """Returns the target's stored distributions for the split's texts, all of which are read."""
    if not tasks.get_task(run.task, run.split).fits(run.split):
        raise TrainingError(
            f"Align.top is {top}, and the split {run.split!r} has no end, or more than "
            f"{tasks.FITS:,} texts; leave it out, and the target runs in each update"
        )
    assert run.target is not None and run.target_path is not None, "Align asks for them"
    return laws.stored(
        run.laws_path or folder / "laws",
        laws.Asked(
            run.target,
            target_params,
            top,
            run.objective.temperature,  # type: ignore[attr-defined]
            Division(run.placement.mesh),
        ),
        {
            "target": checkpoints.fingerprint(run.target_path),
            "task": tasks.get_task(run.task).name,
            "split": run.split,
            "lengths": dict(run.lengths),
        },
        read_split(run.task, run.split, run.lengths),
        lambda texts: _packed(run, texts),
        say,
    )


def _evaluation(run: TrainRun) -> list[Pairs]:
    if run.evaluation_split is None:
        return []
    examples = read_split(run.task, run.evaluation_split, run.lengths)
    return _packed(run, examples)


def _packed(run: TrainRun, examples: Iterable[TokenPair]) -> list[Pairs]:
    sizes = run.batch_size, run.buckets, run.pad_id
    return pack(examples, run.lengths, *sizes, _maker(run))


def _maker(run: TrainRun) -> MakeInputs:
    """Returns the function that makes inputs of `run.reader` from ids and texts."""
    return functools.partial(
        tasks.inputs_of, tasks.get_task(run.task).vocabulary, shape=run.reader.inputs_shape
    )


def _settings(run: TrainRun, first: Pairs) -> dict[str, object]:
    """Returns the settings that a resumed run must share, with a digest of the first batch."""
    digest = hashlib.sha256(b"".join(x.tobytes() for x in jax.tree.leaves(first)))
    objective: Any = run.objective
    return {
        "task": tasks.get_task(run.task).name,
        "split": run.split,
        "lengths": dict(run.lengths),
        "batch_size": run.batch_size,
        "buckets": run.buckets,
        "seed": run.seed,
        "objective": {"name": type(objective).__name__, **_plain(dataclasses.asdict(objective))},
        "optimizer": dataclasses.asdict(run.optimizer),
        "model": dataclasses.asdict(run.model.config),
        **({"initial": run.initial_path} if run.initial_path else {}),
        **({"best_by": run.best_by} if run.best_by else {}),
        **({"reference": run.reference_path} if run.reference_path else {}),
        "target": run.target and [dataclasses.asdict(run.target.config), run.target_path],
        "first_batch": digest.hexdigest(),
    }


def _plain(fields: dict[str, object]) -> dict[str, object]:
    """Returns the fields that are not None; functions are replaced by their names."""
    set_ones = {name: value for name, value in fields.items() if value is not None}
    return {name: getattr(x, "__qualname__", x) for name, x in set_ones.items()}


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[], int]]:
    """Yields a function that returns the received signal, SIGINT or SIGTERM, else 0.

    All hosts call this function together, and a signal to one host is returned on all of them. A
    second signal acts immediately, on its own host. JAX's preemption service handles only SIGTERM,
    replaces Python's handler, and lets the hosts continue for some steps.
    """
    came = [0]
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _) -> None:
        came.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def agreed() -> int:
        if number := hosts.largest(came[-1]):
            restore()
        return number

    try:
        for number in before:
            signal.signal(number, note)
    except ValueError:  # only the main thread may, and only it is interrupted
        yield agreed
        return
    try:
        yield agreed
    finally:
        restore()


class Progress:
    """Prints a line on stderr every `every` steps; on a terminal, each line replaces the one
    before."""

    def __init__(self, start: int, steps: int, every: int):
        self._steps, self._every = steps, every
        self._since = start  # the step of the last line
        self._time = time.perf_counter()
        self._tokens = 0
        self._loss = self._accuracy = 0.0
        self._passing = False  # whether the cursor is still in the last line

    def update(self, step: int, loss: float, accuracy: float, rate: float, tokens: int) -> None:
        """Counts a step, and prints a line if one is due."""
        self._loss += loss
        self._accuracy += accuracy
        self._tokens += tokens
        if step % self._every and step != self._steps:
            return
        now, count = time.perf_counter(), step - self._since
        seconds = max(now - self._time, 1e-9)
        remaining = round((self._steps - step) * seconds / count)
        self.say(
            f"step {step:,} of {self._steps:,}, loss {self._loss / count:.4f}, "
            f"accuracy {self._accuracy / count:.3f}, learning rate {rate:.2e}, "
            f"{self._tokens / seconds:,.0f} tokens/s, {remaining // 60}m{remaining % 60:02}s left",
            passing=True,
        )
        self._since, self._time = step, now
        self._tokens, self._loss, self._accuracy = 0, 0.0, 0.0

    def say(self, line: str, passing: bool = False) -> None:
        """Prints a line; on a terminal, the next line overwrites a `passing` one."""
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line}", end="" if passing else "\n", file=sys.stderr, flush=True)
            self._passing = passing
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._passing:
            print(file=sys.stderr)
