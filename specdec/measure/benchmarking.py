"""`specdec bench`: times speculation against the target alone, one text at a time."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from specdec.common import notebook, progress
from specdec.common.environment import hardware, load_average
from specdec.common.gin_text import MACHINE
from specdec.common.values import UsageError, one_line
from specdec.engine import Store
from specdec.engine.key import flat
from specdec.measure import printed, recorded_texts
from specdec.measure.file import File, Generation
from specdec.measure.measurement import Measurement
from specdec.measure.parts import Workload, of_greedy
from specdec.measure.summary import BenchmarkSummary
from specdec.models.contract.model import Model, Target
from specdec.models.placement import device as devices
from specdec.texts.measured_run import Run, Variant, described
from specdec.texts.texts import Data
from specdec.types import PyTree, Table
from specdec.verifiers import SyntheticAcceptance

LIMIT = 32
TEXTS_ELSEWHERE = 64  # at least this many, as few texts predict acceptance badly


class Timed(NamedTuple):
    """A variant of the drafter with its traced programs, ready to be timed."""

    variant: Variant
    workload: Workload  # the timed programs, already traced, so that bad settings fail early
    path: str | None  # the file of its records; None keeps them in memory

    @property
    def run(self) -> Run:
        return self.variant.run

    def measurement(
        self, texts: Mapping[int, PyTree], file: File, repeats: int, store: Store
    ) -> Measurement:
        """Reads checkpoints that `store` lacks, compiles, and returns the measurement."""
        trees = trees_of(self.run, store.read)
        return Measurement(self.workload, trees, texts, file, self.run.data.seed, repeats)

    def about(self, repeats: int, load: float | None) -> dict[str, object]:
        """Returns the settings of the measurement by name, for the JSON report."""
        device = devices.this()
        about = described(self.run)
        return {
            "dtype": about.pop("dtype"),
            "layouts": layouts(self.run),
            "products": device and device.milliseconds,
            **about,
            "repeats": repeats,
            "load": load,
            "variant": self.variant.name,
        }


@dataclasses.dataclass(frozen=True, repr=False)
class Measured:
    """The benchmark result of one variant."""

    variant: Variant
    summary: BenchmarkSummary
    load: float | None  # the load average before the measurement; None if unknown

    @property
    def sentence(self) -> str:
        """The speed-up, the identity of the outputs and the settings, in one sentence."""
        return printed.sentence(self.summary, self.variant.run.decoder.plan, hardware())

    def lines(self) -> Iterator[str]:
        """Yields the printed result: a sentence, how far it can be trusted, and the table."""
        yield self.sentence
        yield from printed.trust(self.load, self.summary.spread)
        yield ""
        yield from printed.lines(self.summary)
        for role, layout in layouts(self.variant.run).items():
            yield f"{'kernels, ' + role:20}  {layout}"

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        first, *rest = self.lines()
        return notebook.lines(first, rest)


class Benchmark(NamedTuple):
    """Variants of speculation with one target, ready to be timed alternately on the same texts."""

    timed: Sequence[Timed]
    texts: Mapping[int, PyTree]  # example index in the timed split -> inputs [1, S]
    others: Mapping[int, PyTree]  # the same for `split`, from whose texts the times are predicted
    split: str | None  # the name of a second split; None for no prediction

    @classmethod
    def of(
        cls,
        variants: Iterable[tuple[Variant, str | None]],
        *,
        synthetic_alpha: float | None = None,
        split: str | None = None,
    ) -> Benchmark:
        """Returns the benchmark of (variant, path of its records or None); UsageError if unfit."""
        with one_line("--synthetic_alpha: "):
            synthetic = None if synthetic_alpha is None else SyntheticAcceptance(synthetic_alpha)
        timed: list[Timed] = []
        for variant, path in variants:
            variant = _on_this_machine(variant)
            if timed:
                recorded_texts.refuse_another(variant.name, _key(timed[0].run), _key(variant.run))
            if synthetic and variant.run.beams:
                raise UsageError(
                    f"--synthetic_alpha is {synthetic.alpha}, which beams do not use; leave "
                    "it out, or leave out NUM_BEAMS"
                )
            if synthetic:
                variant = _accepting(variant, synthetic)
            if split and variant.run.data.texts is not None:
                raise UsageError(
                    f"--forecast_split is {split!r}, and texts of a file have no splits; leave it "
                    "out, or benchmark a task"
                )
            if split == variant.run.data.split:
                raise UsageError(
                    f"--forecast_split is {split!r}, the split that is timed; name "
                    "another split, to predict the speed-up from its texts"
                )
            timed.append(Timed(variant, _workload(variant.run), path))
        # All settings have been checked; what follows takes long.
        first = timed[0].run
        return cls(timed, texts_of(first), _texts_elsewhere(first, split), split)

    def measure(self, repeats: int, profile_dir: str | None = None) -> Iterator[Measured]:
        """Times all variants alternately, and yields each result; traces the first with xprof."""
        load = load_average()  # of other processes, as this one has not compiled anything yet
        # All files are locked before a checkpoint is read.
        files = [
            File(timed.path, timed.variant.settings, len(timed.workload.generations))
            for timed in self.timed
        ]
        workloads = [timed.workload for timed in self.timed]
        programs = sum(len(x.generations) + len(x.parts) for x in workloads)
        progress.expect_programs(programs, exactly=True)
        placements = {timed.run.placement for timed in self.timed}
        stores = {placement: Store(placement) for placement in placements}
        measurements = [
            timed.measurement(self.texts, file, repeats, stores[timed.run.placement])
            for timed, file in zip(self.timed, files, strict=True)
        ]
        if self.split:
            for measurement in measurements:
                measurement.decode_elsewhere(self.others, self.split)
        _take_turns(measurements)
        for timed, measurement in zip(self.timed, measurements, strict=True):
            summary = measurement.conclude(timed.about(repeats, load), self.split)
            yield Measured(timed.variant, summary, load)
        if profile_dir:
            measurements[0].profile(profile_dir)


def _take_turns(measurements: Sequence[Measurement]) -> None:
    """Runs all measurements alternately, text by text, with a progress bar on a terminal."""
    total = sum(measurement.remaining for measurement in measurements)
    by_text = (measurement.by_text() for measurement in measurements)
    turns = itertools.zip_longest(*by_text, fillvalue=())
    first = list(itertools.islice(turns, 1))  # warms up, which the remaining time leaves out
    with progress.bar("timing", total, "generation") as bar:
        for turn in itertools.chain(first, turns):
            for record in itertools.chain.from_iterable(turn):
                bar.update(isinstance(record, Generation))


def trees_of(run: Run, tree_of: Callable[[Target | Table, str], PyTree]) -> dict[str, PyTree]:
    """Returns name -> parameters for a `Workload`; `tree_of` reads those of a model or table."""
    paths = run.paths()
    return {name: tree_of(owned, paths[role]) for name, role, owned in _owned(run)}


def layouts(run: Run) -> dict[str, str]:
    """Returns role -> the layout of a model's kernels on this device, in words."""
    models = {name: owned for name, _, owned in _owned(run) if isinstance(owned, Model)}
    return {name: str(model.layout) for name, model in models.items()}


def _owned(run: Run) -> Iterator[tuple[str, str, Target | Table]]:
    """Yields (name in a workload, role in the run, model or table) of each tree of parameters."""
    yield "alone", "target", run.target_alone
    if run.search:
        yield from ((role, role, model) for role, model in run.search.plan.models().items())
    for role, owned in run.plan.owned().items():
        yield (of_greedy(role) if run.search else role), role, owned


def _accepting(variant: Variant, verifier: SyntheticAcceptance) -> Variant:
    """Returns the variant with a verifier that accepts draft tokens at a fixed rate, and without
    stop ids, so that every text has the maximum length."""
    engine = variant.engine.variant(verifier=verifier, stop_ids=())
    # No gin file reads this name, so repeating the run from its settings alone fails.
    line = f"\nSYNTHETIC_ALPHA = {verifier.alpha}  # --synthetic_alpha, NOT EXACT\n"
    run = dataclasses.replace(variant.run, engine=engine)
    return variant._replace(run=run, settings=variant.settings + line)


class _HasData(Protocol):
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def data(self) -> Data: ...


R = TypeVar("R", bound=_HasData)


def one_text_at_a_time() -> Callable[[R], R]:
    """Returns a function that sets a run's batch size to 1; its first call may print a note."""
    noted = False

    def change(run: R) -> R:
        nonlocal noted
        data = run.data
        if not noted and (data.batch_size != 1 or data.buckets):
            print(
                "bench: times one text per batch, padded to one length; specdec tune --batch_size "
                "predicts larger batches",
                file=sys.stderr,
            )
        noted = True
        if data.decoder_prefix:
            raise UsageError(
                f"decoder_prefix is {data.decoder_prefix!r}; leave it out, only whole outputs are "
                "measured"
            )
        limit = LIMIT if data.limit is None else data.limit
        data = dataclasses.replace(data, batch_size=1, buckets=(), limit=limit)
        return dataclasses.replace(run, data=data)

    return change


def _on_this_machine(variant: Variant) -> Variant:
    """Returns the variant with comments about the machine added to its settings."""
    facts = hardware() | {"layouts": layouts(variant.run)}
    machine = "".join(f"{MACHINE}{name} = {value}\n" for name, value in facts.items())
    return variant._replace(settings=variant.settings + machine)


def _key(run: Run) -> dict[str, object]:
    """Returns the settings, by name, in which all variants of one benchmark must agree."""
    alone = dataclasses.replace(run, engine=run.engine.alone())
    rules = dataclasses.replace(run.placement.partitioner, draft_logical_axis_rules=())
    searched = flat("beams", run.search.alone().plan) if run.search else {}
    more = {"LIMIT": run.data.limit, **flat("partitioner", rules), **searched}
    return {**recorded_texts.key(alone), **more}


def _workload(run: Run) -> Workload:
    """Returns the timed programs of a run, traced, so that bad settings fail early."""
    mesh, search = run.placement.mesh, run.search
    if search:
        workload = Workload.of(search.plan, search.alone().plan, mesh, greedy=run.plan)
    else:
        workload = Workload.of(run.plan, run.engine.alone().plan, mesh)
    with one_line():
        workload.check(trees_of(run, run.placement.shape), run.data.lengths["inputs"])
    return workload


def texts_of(run: Run) -> dict[int, PyTree]:
    """Returns the run's texts, example index -> inputs [1, S]; UsageError if there are none."""
    texts = {int(batch.index[0]): batch.inputs for batch in run.batches()}
    if not texts:
        raise UsageError(f"split {run.data.split!r} has no examples; nothing to measure")
    return texts


def _texts_elsewhere(run: Run, split: str | None) -> dict[int, PyTree]:
    """Returns texts of another split, example index -> inputs [1, S]; none if it is None."""
    if split is None:
        return {}
    limit = max(run.data.limit or LIMIT, TEXTS_ELSEWHERE)
    data = dataclasses.replace(run.data, split=split, limit=limit)
    return texts_of(dataclasses.replace(run, data=data))
