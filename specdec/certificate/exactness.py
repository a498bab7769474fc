"""The checks of a certificate and their thresholds; more checks are in `hostile` and `drawn`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from specdec.certificate.outcome import Check, Power, agreement
from specdec.certificate.subject import Subject
from specdec.decoding import prefill, step
from specdec.decoding.program import Program
from specdec.decoding.row_bits import compared
from specdec.drafters import MultiPath
from specdec.models.contract import loops
from specdec.models.contract.inputs import tokens_of
from specdec.plan import Plan
from specdec.sampling import Greedy, Sampling, unprocessed
from specdec.testing import (
    ASKED_EVERYWHERE,
    BROKEN,
    FALSE_ALARM,
    Bench,
    Skipping,
    law_errors,
    rounds_errors,
)
from specdec.types import Array, DecodeOutput, DecodeState, Draft, Params, Request, Trace
from specdec.verifiers import Coupled, SpeculativeSampling
from specdec.verifiers.decide import Verifier

ALGEBRA_ERROR = 1e-12  # float64
# p and q of a perfect drafter come from calls of other widths. In float32 they differ by some 1e-6,
# which is how often the ratio rule rejects; a rejection cuts the draft short once.
REJECTIONS = 1e-4  # of the draft tokens, and one is always allowed
BFLOAT16_ACCEPTANCE = 0.95
WANTED_BFLOAT16 = 0.15
FEW_ROWS = 16  # the cache of up to 16 rows is written row by row
WANTED_REJECTIONS = 0.02  # the share of draft tokens that a fault may lose undetected
WANTED_DISTANCE = 0.05  # in total variation
LAW_ROWS = 200_000  # finds noise that is used twice also at low temperatures; 30,000 do not


def _on_one_device(check: Callable[[Subject], Check]) -> Callable[[Subject], Check]:
    """Returns the check without a mesh; it uses none of the run's models."""

    @functools.wraps(check)
    def alone(subject: Subject) -> Check:
        with jax.set_mesh(None):
            return check(subject)

    return alone


@_on_one_device
def algebra(subject: Subject) -> Check:
    """Checks in float64 that the verifier emits the target's distribution, for many p and q."""
    verifier = subject.plan.verifier
    drawn = unprocessed(subject.drawn)  # each row of a law stands for a text
    samplings = (Greedy(),) if subject.greedy_only else (drawn, Greedy())
    with jax.enable_x64(True):
        errors = [error for rule in samplings for _, error in law_errors(verifier, rule)]
        if subject.plan.drafter.paths and not subject.greedy_only:
            errors += [error for _, error in rounds_errors(verifier, drawn)]
    worst = float(np.max(errors))
    return Check(
        "algebra",
        {"largest_error": worst, "laws": len(errors), "samplings": [str(s) for s in samplings]},
        {"largest_error": ("<=", ALGEBRA_ERROR)},
        f"{verifier} is off by {worst:.1e} at most in {len(errors)} laws enumerated in "
        f"float64 (threshold {ALGEBRA_ERROR:g}){ASKED_EVERYWHERE if np.isnan(worst) else ''}",
    )


def greedy(subject: Subject) -> Check:
    """Checks that outputs at temperature 0 equal those of the target alone."""
    return agreement("greedy", subject, subject.greedy, subject.speculated)


def seeds(subject: Subject) -> Check:
    """Checks that sampled outputs with `Coupled` equal those of the target with the same keys."""
    sampling = subject.drawn
    output = subject.texts(subject.variant(sampling, verifier=Coupled()))
    return agreement("seeds", subject, sampling, output)


def bits(subject: Subject) -> Check:
    """Checks that a token's logits have the same bits at every index and width of a call."""
    plan, rows = subject.plan, subject.batch_size
    widths = range(2, plan.longest_draft + 2)
    length = tokens_of(subject.inputs).shape[1]
    places, differ = compared(plan, subject.params["target"], rows, length, widths)
    return Check(
        "bits",
        {"places": places, "differing": len(differ), "widths": list(widths)},
        {"places": (">=", 2), "differing": ("==", 0)},
        f"a row has the same bits in {places - len(differ)} of {places} places of calls on 2 to "
        f"{widths[-1]} tokens (all must be)",
    )


def perfect(subject: Subject) -> Check:
    """Checks that every draft token is accepted if the target is its own drafter."""
    # It runs greedy, and drawn with the drafter skipped at random, so that it must catch up. Drawn
    # tokens are verified by the ratio rule, which keeps all of them; the plan's may be stricter.
    drawn = subject.greedy if subject.greedy_only else subject.drawn
    plan, params = subject.itself(drawn)
    as_it_is = subject.greedy_only or plan.shared_noise
    verifier = plan.verifier if as_it_is else SpeculativeSampling()
    skipping = dataclasses.replace(plan, drafter=Skipping(plan.drafter), verifier=verifier)
    runs = (subject.itself(subject.greedy), (skipping, params))
    traces = [subject.decode(*run).trace for run in runs]
    drafted, accepted, rejections = (
        sum(counts) for counts in zip(*map(_counts, traces), strict=True)
    )
    rate = accepted / max(drafted, 1)
    note = f"{accepted} of {drafted} draft tokens of the target itself accepted, "
    demands: dict[str, tuple[str, float]] = {"drafted": (">=", 1)}
    share, wanted = 1 - BFLOAT16_ACCEPTANCE, WANTED_BFLOAT16
    if subject.float32:
        share, wanted = REJECTIONS, WANTED_REJECTIONS
        allowed = max(1, int(REJECTIONS * drafted))
        demands["rejections"] = ("<=", allowed)
        note += f"{rejections} drafts cut short (threshold {allowed}, for a near-tie)"
    else:
        demands["acceptance"] = (">=", BFLOAT16_ACCEPTANCE)
        note += f"{rate:.4f} (at least {BFLOAT16_ACCEPTANCE})"
    figures = {"drafted": drafted, "accepted": accepted, "rejections": rejections}
    what = "a loss of {:.1%} of the draft tokens"
    power = Power.of_cases(drafted, subject.count, wanted, what, share)
    return Check("perfect", figures | {"acceptance": rate}, demands, note, power=power)


def _counts(trace: Trace) -> tuple[int, int, int]:
    """Returns the numbers of draft tokens, accepted tokens, and shortened drafts."""
    short = trace.accepted < trace.drafted
    return int(trace.drafted.sum()), int(trace.accepted.sum()), int(short.sum())


def audit(subject: Subject) -> Check:
    """Checks that every emitted token is the target's argmax, with the right log-probability."""
    output, taught = subject.speculated, subject.taught
    gap = float(np.max(taught.gap))
    error = float(np.max(np.abs(output.log_probs - taught.log_probs)))
    tokens = int(output.length.sum())
    limit = subject.tolerance
    return Check(
        "audit",
        {
            "tokens": tokens,
            "not_argmax": int(np.sum(taught.gap > 0)),
            "largest_gap": gap,
            "log_prob_error": error,
            "largest_logit": float(taught.largest.max()),
        },
        {"largest_gap": ("<=", limit), "log_prob_error": ("<=", limit)},
        f"{tokens} tokens teacher-forced: at most {gap:.2g} below the argmax, log-probabilities "
        f"off by {error:.1e} (threshold {limit:.2g} nats)",
        power=Power.of_texts(subject.count),
    )


@_on_one_device
def law(subject: Subject) -> Check:
    """Checks verifier, schedule and sampling in the loop: outputs of an enumerated table model."""
    # Some rows are decoded again in a small batch, where the cache is written in another way. A
    # verifier that only compares argmaxes draws nothing, so the ratio rule replaces it.
    bench = _bench(subject)
    few = bench.run(_drawing(subject), subject.plan.schedule, subject.drawn, FEW_ROWS)
    check, output = _law("law", subject, bench)
    differ = int(np.sum(np.any(few.tokens != output.tokens[:FEW_ROWS], axis=1)))
    return dataclasses.replace(
        check,
        figures=check.figures | {"rows_unlike_their_batch": differ},
        demands=check.demands | {"rows_unlike_their_batch": ("==", 0)},
        note=f"{check.note}; {differ} of {FEW_ROWS} rows depend on their batch",
    )


@_on_one_device
def broken(subject: Subject) -> Check:
    """Checks `law` with a drafter whose q is no distribution, in each way of `testing.BROKEN`."""
    check, output = _law("broken", subject, _bench(subject).broken())
    by_kind = [int(output.trace.broken_drafts[k :: len(BROKEN)].sum()) for k in range(len(BROKEN))]
    missed = sum(count == 0 for count in by_kind)
    return dataclasses.replace(
        check,
        figures=check.figures | {"broken_drafts": sum(by_kind), "kinds_missed": missed},
        demands=check.demands | {"kinds_missed": ("==", 0)},
        note=f"{sum(by_kind)} drafts ended early, of {len(BROKEN) - missed} of {len(BROKEN)} "
        f"broken kinds; {check.note}",
    )


def _bench(subject: Subject) -> Bench:
    bench = Bench.create(rows=LAW_ROWS)
    if paths := subject.plan.drafter.paths:
        bench = bench._replace(drafter=MultiPath(bench.target, Sampling(), paths=paths))
    of_schedule = {role: subject.params[role] for role in subject.plan.schedule.tables()}
    return bench._replace(params=bench.params | of_schedule)


def _drawing(subject: Subject) -> Verifier:
    """Returns the plan's verifier, or `SpeculativeSampling` if it works only at temperature 0."""
    return SpeculativeSampling() if subject.greedy_only else subject.plan.verifier


def _law(name: str, subject: Subject, bench: Bench) -> tuple[Check, DecodeOutput]:
    """Compares outputs of a bench's table model with their enumerated distribution."""
    verifier = _drawing(subject)
    output = bench.run(verifier, subject.plan.schedule, subject.drawn)
    result = bench.compare(output.tokens, subject.drawn)
    note = f"{subject.drawn}: {result}"
    if subject.greedy_only:
        note += f"; by {verifier}, because {subject.plan.verifier} has one possible output and so "
        note += "no law"
    figures = dataclasses.asdict(result)
    figures |= {"sampling": str(subject.drawn), "verifier": str(verifier)}
    demands: dict[str, tuple[str, float]] = {
        "p_value": (">=", FALSE_ALARM),
        "impossible": ("==", 0),
        "degrees": (">=", 1),
    }
    seen = result.detectable_tv
    power = Power(seen, WANTED_DISTANCE, 0, "a distance of {:.3f} in total variation")
    return Check(name, figures | {"false_alarm": FALSE_ALARM}, demands, note, power=power), output


TEXTS = 8
DIFFERENT = 1e-4  # of the drafts, and one is always allowed: a near-tie of another width's rounding
BFLOAT16_DIFFERENT = 0.1
WANTED = 0.3  # the share of drafts that may differ undetected


def afresh(subject: Subject) -> Check:
    """Checks that the drafter proposes the same with a new state made from the committed text."""
    # Then nothing is missing in its caches, and no pointer is lost. The drafter is skipped at
    # random, so that it must catch up. One that `adapts` depends on more than the text.
    if subject.plan.drafter.adapts:
        note = f"{type(subject.plan.drafter).__name__} adapts, so that no draft need be the same"
        return Check("afresh", {"drafts": 0, "different": 0}, {}, note)
    plan = subject.variant(subject.greedy)
    count = Program(functools.partial(_count, plan=plan), mesh=subject.mesh)
    counts = [
        count.fetch(subject.params, *batch, everywhere=True)[0] for batch in subject.batches(TEXTS)
    ]
    drafts, different = np.sum(counts, axis=0).tolist()
    allowed = DIFFERENT if subject.float32 else BFLOAT16_DIFFERENT
    limit = max(1, int(allowed * drafts))
    return Check(
        "afresh",
        {"drafts": drafts, "different": different},
        {"different": ("<=", limit)},
        f"{different} of {drafts} drafts of {type(plan.drafter).__name__} differ from those of a "
        f"state made anew (threshold {limit}, for a near-tie)",
        power=Power.of_cases(
            drafts, subject.count, WANTED, "a difference in {:.0%} of the drafts", allowed
        ),
    )


def _count(params: Params, keys: Array, inputs: Array, *, plan: Plan) -> tuple[Array, Array]:
    """Returns the number of drafts, and of those that differ from the drafts of a new state."""
    drafter, skipping = plan.drafter, dataclasses.replace(plan, drafter=Skipping(plan.drafter))

    def again(loop: tuple[DecodeState, Array, Array]) -> tuple[DecodeState, Array, Array]:
        state, drafts, different = loop
        context = plan.context(state)
        room = jnp.minimum(plan.max_length - state.length, plan.longest_draft)
        want = jnp.where(state.active, room, 0)
        request = Request(context, _keys(state, plan), want)
        carried, _ = drafter.propose(params, request, state.drafter)
        anew, _ = drafter.propose(params, request, drafter.init(params, context))
        drafts += jnp.sum(want > 0)
        different += jnp.sum((want > 0) & _differ(carried, anew))
        return step(params, state, skipping), drafts, different

    state = prefill(params, keys, inputs, skipping)
    loop = (state, jnp.int32(0), jnp.int32(0))
    return loops.while_loop(lambda loop: jnp.any(loop[0].active), again, loop)[1:]


def _keys(state: DecodeState, plan: Plan) -> Array:
    """Returns [B, K] keys that are not used, because greedy drafters draw nothing."""
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    drafted = np.arange(plan.nodes_of(plan.longest_draft))
    return jax.vmap(lambda keys: fold(keys[1], drafted))(state.keys)


def _differ(a: Draft, b: Draft) -> Array:
    """Returns [B] bool, whether a row's two drafts differ."""
    index = (jnp.arange(a.tokens.shape[1]) if a.nodes is None else a.nodes.depths)[None]
    tokens = (a.tokens != b.tokens) & (index < jnp.minimum(a.length, b.length)[:, None])
    return (a.length != b.length) | jnp.any(tokens, axis=1)
