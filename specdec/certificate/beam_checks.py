"""The certificate of a beam search: on this device, does a draft change any of its beams?

  beams     all beams of all texts against plain beams: ids, order, ends, scores, steps
  best      a search for the best text alone finds the first of all beams
  perfect   the target as its own draft: each call yields all its steps, so no cache lost any
  hostile   harmful drafts: the beams stay the same; the slowdown is measured
  audit     each beam teacher-forced, without beam search: its score is that of its tokens

Plain beams are those of the same search without a draft; only `audit` does not need them.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from specdec.certificate.hostile import TEXTS, slowdowns, summary
from specdec.certificate.outcome import Check, Power
from specdec.certificate.subject import Subject
from specdec.decoding import beam_search
from specdec.decoding.beam_plan import BeamPlan
from specdec.decoding.beam_rules import BeamSet
from specdec.decoding.beam_search import BeamOutput, BeamState
from specdec.decoding.draft_beams import DraftBeams
from specdec.models.contract.model import Target
from specdec.sampling import before_each
from specdec.testing.drafters import HARMS, HarmfulModel
from specdec.types import Array, Params, PyTree

WANTED_CALLS = 0.15  # the share of calls that may miss a beam undetected
SHORT_CALLS = 1e-3  # the allowed share of such calls if the target drafts; one is always allowed


@dataclasses.dataclass(frozen=True, eq=False)
class BeamSubject(Subject):
    """A beam search, and the texts on which it is checked.

    Args:
      search: the run's search, with models of `plan`.
    """

    search: BeamPlan = dataclasses.field(kw_only=True)

    @property
    def all_beams(self) -> BeamPlan:
        """The run's search, continued until all its beams are found (`best_only` is False)."""
        return dataclasses.replace(self.search, best_only=False)

    def with_draft(self, model: Target, width: int, reuse: bool = True) -> tuple[BeamPlan, Params]:
        """Returns the search with `model` as its draft, and parameters: the target's for both."""
        drafter = DraftBeams(model, width, self.search.depth, reuse=reuse)
        params = Params(**dict.fromkeys(("target", drafter.role), self.params["target"]))
        return dataclasses.replace(self.all_beams, drafter=drafter), params

    def searched(
        self, plan: BeamPlan, params: Params | None = None, rows: int | None = None
    ) -> BeamOutput:
        """Returns the beams of the first `rows` texts, on the host; None for all texts."""
        return self.decode(plan, plan.params(params or self.params), rows)

    @functools.cached_property
    def plain_beams(self) -> BeamOutput:
        """All beams of all texts, found by the target alone."""
        return self.searched(self.all_beams.alone())

    @functools.cached_property
    def drafted_beams(self) -> BeamOutput:
        """All beams of all texts with the run's draft."""
        return self.searched(self.all_beams)


def beams(subject: BeamSubject) -> Check:
    """Checks that all beams equal those of the search without a draft, in as many steps."""
    return _agreement("beams", subject, subject.all_beams, subject.drafted_beams)


def best(subject: BeamSubject) -> Check:
    """Checks that a search for one text finds the best beam of the search without a draft."""
    plan = dataclasses.replace(subject.search, best_only=not subject.search.processors)
    output, plain = subject.searched(plan), subject.plain_beams
    differ = np.any(output.tokens[:, 0] != plain.tokens[:, 0], axis=1)
    error = _largest(output.scores[:, 0] - plain.scores[:, 0])
    saved = int(plain.trace.steps.sum()) - int(output.trace.steps.sum())
    rows = len(differ)
    return Check(
        "best",
        {"texts": rows, "identical": rows - int(differ.sum()), "score_error": error},
        {"score_error": ("<=", subject.tolerance), "texts": (">=", 1)},
        f"{rows - int(differ.sum())} of {rows} texts are the best beam without a draft, in {saved} "
        f"steps fewer; scores off by {error:.1e} at most (threshold {subject.tolerance:.2g})",
        power=Power.of_texts(rows),
    )


def perfect(subject: BeamSubject) -> Check:
    """Checks that no beam is missed if the target itself drafts, with as many beams."""
    # Only a text's last call may yield fewer steps than it drafted. The scores of the previous
    # call are not reused: those of another draft may be stale, and no check sees that.
    if subject.search.processors:
        note = "processors change the target's choice and not the draft's, so that calls may miss"
        return Check("perfect", {"calls": 0, "short_calls": 0}, {}, note)
    searched = subject.with_draft(subject.search.target, subject.search.beams, reuse=False)
    trace = subject.searched(*searched).trace
    within = np.arange(trace.steps.shape[1])[None] < trace.calls[:, None] - 1
    calls = int(within.sum())
    short = int((within & (trace.steps <= subject.search.depth)).sum())
    rows = len(trace.calls)
    limit = max(1, int(SHORT_CALLS * calls))
    return Check(
        "perfect",
        {"calls": calls, "short_calls": short},
        {"short_calls": ("<=", limit), "calls": (">=", 1)},
        f"{short} of {calls} calls on a draft of the target itself miss a beam (threshold {limit}, "
        "for a near-tie)",
        power=Power.of_cases(
            calls, rows, WANTED_CALLS, "a miss in {:.0%} of the calls", SHORT_CALLS
        ),
    )


def hostile(subject: BeamSubject) -> Check:
    """Checks that harmful drafts change no beam, score or step, and add no target calls."""
    rows, width = min(TEXTS, subject.count), subject.search.draft_beams
    runs = {"alone": functools.partial(subject.searched, subject.all_beams.alone(), rows=rows)}
    cases = []
    for harm in HARMS:
        model = HarmfulModel(subject.search.target, harm, subject.search.stop_ids)
        plan, params = subject.with_draft(model, width)
        runs[harm] = functools.partial(subject.searched, plan, params, rows)
        cases.append(_agreement(harm, subject, plan, runs[harm](), params))
    same = f"texts the same beams under {len(cases)} hostile drafts"
    return summary(cases, slowdowns(subject, runs), same, "the time of plain beams")


def audit(subject: BeamSubject) -> Check:
    """Checks that beams are in order, different, and scored by their tokens' log-probabilities."""
    output = subject.drafted_beams
    score = jax.jit(functools.partial(_score, plan=subject.all_beams))
    right = subject.compared(score, output.tokens, output.length, output.finished)
    there = output.length > 0
    error = _largest(np.where(there, output.scores - right, 0))
    order = np.where(there[:, 1:], np.diff(output.scores, axis=1), -1.0)
    wrong = int(np.sum(~(order <= 0)))
    texts = [output.texts(row) for row in range(len(there))]
    twice = sum(len(beams) - len(set(map(tuple, beams))) for beams in texts)
    return Check(
        "audit",
        {"beams": int(there.sum()), "score_error": error, "out_of_order": wrong, "twice": twice},
        {
            "beams": (">=", 1),
            "score_error": ("<=", subject.tolerance),
            "out_of_order": ("==", 0),
            "twice": ("==", 0),
        },
        f"{int(there.sum())} beams teacher-forced: scores off by {error:.1e} at most (threshold "
        f"{subject.tolerance:.2g}), {wrong} out of order, {twice} twice",
        power=Power.of_texts(subject.count),
    )


BEAM_CHECKS = (beams, best, perfect, hostile, audit)


def _agreement(
    name: str,
    subject: BeamSubject,
    plan: BeamPlan,
    output: BeamOutput,
    params: Params | None = None,
) -> Check:
    """Checks that beams equal those without a draft, where a difference must be a near-tie."""
    rows = len(output.length)
    plain: BeamOutput = jax.tree.map(lambda x: x[:rows], subject.plain_beams)
    steps, plain_steps = (np.sum(x.trace.steps, axis=1) for x in (output, plain))
    differ = steps != plain_steps
    for ours, others in zip(output[:2], plain[:2], strict=True):
        differ |= (ours != others).reshape(rows, -1).any(axis=1)
    differ |= (output.finished != plain.finished).any(axis=1)
    error = _largest((output.scores - plain.scores)[~differ])
    gaps = [_gap(subject, int(row), plan, params) for row in np.flatnonzero(differ)]
    gap = _largest(gaps)
    slower = int(np.sum(~differ & (output.trace.calls > plain.trace.calls)))
    same = rows - len(gaps)
    exact: dict[str, tuple[str, float]] = {"identical": ("==", rows), "score_error": ("==", 0)}
    note = f"{same} of {rows} texts have the same {plan.beams} beams and steps without a draft"
    if gaps:
        note += f", the others part at a gap of at most {gap:.1e} nats"
    return Check(
        name,
        {
            "texts": rows,
            "identical": same,
            "steps": int(steps.sum()),
            "calls": int(output.trace.calls.sum()),
            "largest_gap": gap,
            "score_error": error,
            "texts_with_more_calls": slower,
        },
        {
            "texts": (">=", 1),
            "largest_gap": ("<=", subject.tolerance),
            "score_error": ("<=", subject.tolerance),
            "texts_with_more_calls": ("==", 0),
            **(exact if subject.search.same_bits else {}),
        },
        f"{note}; scores off by {error:.1e} at most (threshold of both {subject.tolerance:.2g})",
        power=Power.of_texts(rows),
    )


def _largest(errors: ArrayLike) -> float:
    """Returns the largest absolute value; NaN if one is NaN, 0 if there is none."""
    return float(np.max(np.abs(errors), initial=0))


def _gap(subject: BeamSubject, row: int, plan: BeamPlan, params: Params | None) -> float:
    """Returns the smallest gap between scores of candidates, in the search without a draft, at the
    step where two searches first differ."""
    # They run again, call by call. If they do not part this time, the gap is that of all steps.
    _, inputs = subject.batches(subject.count)[row // subject.batch_size]
    row %= subject.batch_size
    trees, alone = plan.params(params or subject.params), plan.alone()
    ours = beam_search.prefill(trees, inputs, plan)
    plain = beam_search.prefill(alone.params(subject.params), inputs, alone)
    passed: list[BeamState] = []
    while ours.beams.active[row]:
        ours, before = beam_search.step(trees, ours, plan), len(passed)
        while plain.beams.active[row] and _steps(plain, row) < _steps(ours, row):
            passed.append(plain)
            plain = beam_search.step(alone.params(subject.params), plain, alone)
        if not _alike(ours.beams, plain.beams, row):
            passed = passed[before:]
            break
    margins = (_margin(subject, inputs, state.beams, row, alone) for state in passed)
    return min(margins, default=np.inf)


def _steps(state: BeamState, row: int) -> int:
    return int(jnp.sum(state.trace.steps[row]))


def _alike(ours: BeamSet, plain: BeamSet, row: int) -> bool:
    names = ("live_tokens", "tokens", "lengths", "finished", "length", "active")
    pairs = ((getattr(ours, name)[row], getattr(plain, name)[row]) for name in names)
    return all(np.array_equal(a, b) for a, b in pairs)


def _margin(subject: Subject, inputs: Array, batch: BeamSet, row: int, plan: BeamPlan) -> float:
    """Returns the smallest gap between neighbouring scores of candidates or finished texts."""
    # It is 0 if the search ends or continues by less than the tolerance.
    rule, beams = plan.rule, jax.tree.map(lambda x: x[row], batch)
    text = jax.tree.map(lambda x: x[row], inputs)
    log_probs = _scored(subject.params["target"], text, beams, plan)
    after, *shifted = (
        rule.advance(
            beams.replace(live_scores=beams.live_scores + x),
            log_probs,
            stop_ids=plan.stop_ids,
            best_only=plan.best_only,
        )[0]
        for x in (0.0, -subject.tolerance, subject.tolerance)
    )
    if len({bool(x.active) for x in (after, *shifted)}) > 1:
        return 0.0
    candidates = np.sort(np.ravel(log_probs + beams.live_scores[:, None]))[::-1]
    count = rule.candidates(plan.beams, len(plan.stop_ids)) + 1
    gaps = [np.inf]
    for scores in (candidates[:count], np.sort(np.asarray(after.scores))[::-1]):
        counted = scores[scores > rule.nothing / 2].astype(np.float64)
        gaps += (-np.diff(counted)).tolist()
    return min(gaps)


@functools.partial(jax.jit, static_argnames="plan")
def _scored(params: PyTree, inputs: PyTree, beams: BeamSet, plan: BeamPlan) -> Array:
    """Returns log-probabilities after a text's live beams, [w, V], each fed in its own row."""
    target = plan.target
    fed = beams.live_tokens[:, :-1]
    cache = target.prefill(
        params, jax.tree.map(lambda x: jnp.repeat(x[None], len(fed), axis=0), inputs), fed.shape[1]
    )
    logits = target.decode(params, fed, cache)[0].logits
    at = jnp.clip(beams.length - 1, 0, fed.shape[1] - 1)
    log_probs = jax.nn.log_softmax(logits[:, at], axis=-1)
    batch, prompt = jax.tree.map(lambda x: x[None], (beams, inputs))
    return beam_search.processed(log_probs[None], batch, target.prompt(prompt), plan)[0]


def _score(
    params: PyTree, inputs: Array, tokens: Array, length: Array, finished: Array, *, plan: BeamPlan
) -> Array:
    """Returns the scores [B, w] of beams by their tokens [B, w, N], each fed in its own row."""
    target = plan.target
    rows, width, longest = tokens.shape
    flat = tokens.reshape(rows * width, longest)
    inputs = jnp.repeat(inputs, width, axis=0)
    fed = jnp.concatenate([target.start(inputs)[:, None], flat[:, :-1]], axis=1)
    logits = target.decode(params, fed, target.prefill(params, inputs, longest))[0].logits
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    if plan.processors:
        _, history = before_each(fed, plan.stop_ids, target.prompt(inputs))
        log_probs = beam_search.rule_of(plan).process(log_probs, history)
    emitted = jnp.take_along_axis(log_probs, flat[:, :, None], axis=2)[:, :, 0]
    within = jnp.arange(longest)[None] < length.reshape(-1, 1)
    total = jnp.sum(jnp.where(within, emitted, 0), axis=1).reshape(rows, width)
    penalties = jnp.array([1.0, *map(plan.rule.penalty, range(1, longest + 1))], jnp.float32)
    return jnp.where(finished, total / penalties[plan.rule.counted(length)], total)
