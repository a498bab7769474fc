"""The speed of speculation on a run's texts, one text at a time."""

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
TEXTS_ELSEWHERE = 64  # at least; few texts say little about the acceptance of others


class Timed(NamedTuple):
    """A variant that is ready to be timed."""

    variant: Variant
    workload: Workload  # the calls that are timed, traced already, so that bad settings fail early
    path: str | None  # the file of its lines, None for none

    @property
    def run(self) -> Run:
        return self.variant.run

    def measurement(
        self, texts: Mapping[int, PyTree], file: File, repeats: int, store: Store
    ) -> Measurement:
        """Reads the checkpoints that the store lacks, compiles, and returns the measurement."""
        trees = trees_of(self.run, store.read)
        return Measurement(self.workload, trees, texts, file, self.run.data.seed, repeats)

    def about(self, repeats: int, load: float | None) -> dict[str, object]:
        """Returns a description of the measurement, for the report."""
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
    """The figures of one variant."""

    variant: Variant
    summary: BenchmarkSummary
    load: float | None  # the load average before the measurement, None where it is not known

    @property
    def sentence(self) -> str:
        """The result, in one sentence."""
        return printed.sentence(self.summary, self.variant.run.decoder.plan, hardware())

    def lines(self) -> Iterator[str]:
        """Yields the result in a sentence, how far to trust it, and the table."""
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
    """Variants of one target on the same texts, ready to be timed in turns."""

    timed: Sequence[Timed]
    texts: Mapping[int, PyTree]  # example index -> inputs [1, S]
    others: Mapping[int, PyTree]  # the same, of the split that predicts the timed one
    split: str | None  # the name of that split, None for no prediction

    @classmethod
    def of(
        cls,
        variants: Iterable[tuple[Variant, str | None]],
        *,
        synthetic_alpha: float | None = None,
        split: str | None = None,
    ) -> Benchmark:
        """Returns the benchmark of some variants."""
        with one_line("--synthetic_alpha: "):
            synthetic = None if synthetic_alpha is None else SyntheticAcceptance(synthetic_alpha)
        timed: list[Timed] = []
        for variant, path in variants:
            variant = _on_this_machine(variant)
            if timed:
                recorded_texts.refuse_another(variant.name, _key(timed[0].run), _key(variant.run))
            if synthetic and variant.run.beams:
                raise UsageError(
                    f"--synthetic_alpha is {synthetic.alpha}, and beams are accepted by their "
                    "scores; leave it out, or leave out NUM_BEAMS"
                )
            if synthetic:
                variant = _accepting(variant, synthetic)
            if split and variant.run.data.texts is not None:
                raise UsageError(
                    f"--forecast_split is {split!r}, and the texts are given; leave it out, only a "
                    "task has splits"
                )
            if split == variant.run.data.split:
                raise UsageError(
                    f"--forecast_split is {split!r}, the split that is timed; name "
                    "another one, whose texts predict it"
                )
            timed.append(Timed(variant, _workload(variant.run), path))
        # All that can be wrong has been looked at; from here on it takes long.
        first = timed[0].run
        return cls(timed, texts_of(first), _texts_elsewhere(first, split), split)

    def measure(self, repeats: int, profile_dir: str | None = None) -> Iterator[Measured]:
        """Times all variants in turns, and yields the figures of each."""
        load = load_average()  # of others: nothing has been compiled yet
        # All files are held before a checkpoint is read.
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
    """Measures, text by text, under a bar if there is a terminal."""
    total = sum(measurement.remaining for measurement in measurements)
    by_text = (measurement.by_text() for measurement in measurements)
    turns = itertools.zip_longest(*by_text, fillvalue=())
    first = list(itertools.islice(turns, 1))  # warms up, which the remaining time leaves out
    with progress.bar("timing", total, "generation") as bar:
        for turn in itertools.chain(first, turns):
            for record in itertools.chain.from_iterable(turn):
                bar.update(isinstance(record, Generation))


def trees_of(run: Run, tree_of: Callable[[Target | Table, str], PyTree]) -> dict[str, PyTree]:
    """Returns the parameters by role, as `Workload` takes them."""
    paths = run.paths()
    return {name: tree_of(owned, paths[role]) for name, role, owned in _owned(run)}


def layouts(run: Run) -> dict[str, str]:
    """Returns how kernels are kept and multiplied on this device, by role."""
    models = {name: owned for name, _, owned in _owned(run) if isinstance(owned, Model)}
    return {name: str(model.layout) for name, model in models.items()}


def _owned(run: Run) -> Iterator[tuple[str, str, Target | Table]]:
    """Yields the name, the role and the model or table of each tree of a workload."""
    yield "alone", "target", run.target_alone
    if run.search:
        yield from ((role, role, model) for role, model in run.search.plan.models().items())
    for role, owned in run.plan.owned().items():
        yield (of_greedy(role) if run.search else role), role, owned


def _accepting(variant: Variant, verifier: SyntheticAcceptance) -> Variant:
    """Returns the variant with a verifier that accepts tokens at a given rate, whatever the models
    say, and without stop ids, so that texts have the longest length."""
    engine = variant.engine.variant(verifier=verifier, stop_ids=())
    # No gin file reads this: who repeats the run by its settings alone is stopped.
    line = f"\nSYNTHETIC_ALPHA = {verifier.alpha}  # --synthetic_alpha, NOT EXACT\n"
    run = dataclasses.replace(variant.run, engine=engine)
    return variant._replace(run=run, settings=variant.settings + line)


class _HasData(Protocol):
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def data(self) -> Data: ...


R = TypeVar("R", bound=_HasData)


def one_text_at_a_time() -> Callable[[R], R]:
    """Returns a function that puts a run into batches of one text; its first call prints a note."""
    noted = False

    def change(run: R) -> R:
        nonlocal noted
        data = run.data
        if not noted and (data.batch_size != 1 or data.buckets):
            print(
                "bench: one text at a time, all padded to one length; specdec tune --batch_size "
                "predicts larger batches",
                file=sys.stderr,
            )
        noted = True
        if data.decoder_prefix:
            raise UsageError(
                f"decoder_prefix is {data.decoder_prefix!r}; leave it out, whole outputs are "
                "measured"
            )
        limit = LIMIT if data.limit is None else data.limit
        data = dataclasses.replace(data, batch_size=1, buckets=(), limit=limit)
        return dataclasses.replace(run, data=data)

    return change


def _on_this_machine(variant: Variant) -> Variant:
    """Returns the variant with settings that describe the machine."""
    facts = hardware() | {"layouts": layouts(variant.run)}
    machine = "".join(f"{MACHINE}{name} = {value}\n" for name, value in facts.items())
    return variant._replace(settings=variant.settings + machine)


def _key(run: Run) -> dict[str, object]:
    """Returns the settings that variants of one benchmark share, by name."""
    alone = dataclasses.replace(run, engine=run.engine.alone())
    rules = dataclasses.replace(run.placement.partitioner, draft_logical_axis_rules=())
    searched = flat("beams", run.search.alone().plan) if run.search else {}
    more = {"LIMIT": run.data.limit, **flat("partitioner", rules), **searched}
    return {**recorded_texts.key(alone), **more}


def _workload(run: Run) -> Workload:
    """Returns the calls that are timed, traced, so that bad settings fail early."""
    mesh, search = run.placement.mesh, run.search
    if search:
        workload = Workload.of(search.plan, search.alone().plan, mesh, greedy=run.plan)
    else:
        workload = Workload.of(run.plan, run.engine.alone().plan, mesh)
    with one_line():
        workload.check(trees_of(run, run.placement.shape), run.data.lengths["inputs"])
    return workload


def texts_of(run: Run) -> dict[int, PyTree]:
    """Returns example index -> inputs [1, S]."""
    texts = {int(batch.index[0]): batch.inputs for batch in run.batches()}
    if not texts:
        raise UsageError(f"split {run.data.split!r} has no examples; nothing to measure")
    return texts


def _texts_elsewhere(run: Run, split: str | None) -> dict[int, PyTree]:
    """Returns the texts of the split that predicts the timed one."""
    if split is None:
        return {}
    limit = max(run.data.limit or LIMIT, TEXTS_ELSEWHERE)
    data = dataclasses.replace(run.data, split=split, limit=limit)
    return texts_of(dataclasses.replace(run, data=data))
