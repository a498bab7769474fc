"""`--gamma` and its like, as settings of a run: pytest tests/cli/test_shorthands.py"""

import argparse

import pytest

from specdec import cli
from specdec.cli import flags
from specdec.cli import run as runs
from specdec.sampling import (
    FrequencyPenalty,
    Greedy,
    MinLength,
    NoRepeatNGram,
    PresencePenalty,
    Processed,
    RepetitionPenalty,
    Sampling,
)
from specdec.schedules import Confidence, CostOptimal, Entropy, Fixed, Heuristic
from specdec.verifiers import Coupled, GreedyMatch, SpeculativeSampling


@pytest.fixture
def run():
    """The run of the demo with some flags; nothing is loaded."""

    def described(*given):
        parser = argparse.ArgumentParser()
        flags.add_flags(parser)
        argv = cli.settings.joined(["--gin_file=demo.gin", *given])
        return runs.described(parser.parse_args(argv))

    return described


@pytest.fixture
def plan(run):
    return lambda *flags: run(*flags).plan


@pytest.fixture
def warm(tmp_path):
    """A gin file that sets what fragments have defaults for."""
    file = tmp_path / "warm.gin"
    file.write_text("include 'demo_sampled.gin'\nTEMPERATURE = 0.5\nTOP_P = 0.9\n")
    return f"--gin_file={file}"


def test_each_sets_what_it_says(plan):
    assert plan().schedule == Fixed(7) and plan().max_length == 48
    assert plan("--gamma=3").schedule == Fixed(3)
    assert plan("--max_length=20").max_length == 20
    assert plan("--verifier=coupled").verifier == Coupled()
    sampled = plan("--temperature=0.7", "--verifier=speculative_sampling")
    assert sampled.sampling == Sampling(0.7) and sampled.verifier == SpeculativeSampling()
    sampled = plan("--top_k=4", "--top_p=0.9", "--verifier=coupled")
    assert sampled.sampling == Sampling(1.0, top_k=4, top_p=0.9)


def test_penalties_and_bans_are_of_target_and_drafter(plan):
    flags = ("--repetition_penalty=1.2", "--no_repeat_ngram_size=3", "--min_length=4")
    found = plan(*flags, "--presence_penalty=0.5", "--frequency_penalty=0.25")
    assert found.sampling == Processed(
        Greedy(),
        (
            RepetitionPenalty(1.2),
            FrequencyPenalty(0.25),
            PresencePenalty(0.5),
            NoRepeatNGram(3),
            MinLength(4),
        ),
    )
    assert found.drafter.sampling == found.sampling
    ignoring = plan("--min_length=4", "--gin.DRAFT_SAMPLING=@sampling.Greedy()")
    assert ignoring.drafter.sampling == Greedy() and ignoring.sampling != Greedy()
    drawn = plan("--min_length=4", "--temperature=0.7", "--verifier=coupled").sampling
    assert drawn == Processed(Sampling(0.7), (MinLength(4),))
    preset = plan("--gin_file=sampling/t5_summarization.gin").sampling
    assert preset == Processed(Greedy(), (NoRepeatNGram(3), MinLength(29)))


def test_schedules_have_settings_of_their_own(plan):
    assert plan("--schedule=confidence").schedule == Confidence(0.4)
    assert plan("--schedule=entropy", "--gin.DRAFT_LENGTHS=(5,)").schedule == Entropy(
        1.5, buckets=(5,)
    )
    assert plan("--schedule=heuristic", "--gamma=3").schedule == Heuristic(3)
    costs = ("--gin.DRAFT_COST=0.3", "--gin.VERIFY_COSTS=(1.1, 1.3, 1.6)")
    found = plan("--schedule=cost_optimal", *costs, "--max_length=6").schedule
    assert found == CostOptimal(0.3, (1.1, 1.3, 1.6), (1, 3, 5))


def test_a_shorter_output_is_of_the_plan_and_not_of_the_data(run):
    shortened = run("--max_length=20")
    assert (shortened.plan.max_length, run().plan.max_length) == (20, 48)
    assert shortened.data.lengths == run().data.lengths == {"inputs": 48, "targets": 48}


def test_a_flag_comes_before_a_setting(run):
    given = run("--limit=2", "--gin.LIMIT=4", "--seed=1", "--gin.SEED=0", "--gin.BATCH_SIZE=3").data
    assert (given.limit, given.seed, given.batch_size) == (2, 1, 3)


def test_what_is_not_given_stays_as_the_files_say(plan, warm):
    sampled = plan(warm, "--top_k=4")
    assert sampled.sampling == Sampling(0.5, top_k=4, top_p=0.9)
    assert plan("--schedule=fixed").schedule == Fixed(7)
    assert plan(warm, "--temperature=0", "--verifier=greedy_match").sampling == Greedy()


def test_a_drafter_by_name(plan):
    alone = "--gin.DRAFTER=None"
    assert not plan(alone).drafts
    with pytest.raises(cli.UsageError, match="DRAFTER=None say the same twice"):
        plan(alone, "--drafter=autoregressive")
    assert plan("--drafter=autoregressive") == plan()
    assert plan("--drafter=autoregressive", "--temperature=0.5", "--verifier=coupled").drafts


def test_a_fragment_of_ones_own(plan, tmp_path):
    (tmp_path / "verifiers").mkdir()
    text = "from __gin__ import dynamic_registration\nfrom specdec import verifiers\n"
    (tmp_path / "verifiers" / "mine.gin").write_text(f"{text}VERIFIER = @verifiers.Coupled()\n")
    path = f"--gin_search_paths={tmp_path}"
    assert plan(path, "--verifier=mine").verifier == Coupled()
    assert plan(path).verifier == GreedyMatch()
