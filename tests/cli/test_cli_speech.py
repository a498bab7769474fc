"""Talks of synthetic speech, their windows and subtitles: pytest tests/cli/test_cli_speech.py"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from specdec import checkpoints, cli, tasks
from specdec.models.whisper.segments import segments_of

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = ("go left two steps and stop", "call anna at ten forty", "turn off the red lamp")


@pytest.fixture(scope="module")
def scripts():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts" / "data"))
        patch.syspath_prepend(str(ROOT / "scripts" / "studies"))
        import make_speech
        import speech

        yield make_speech, speech


@pytest.fixture(scope="module")
def talk(scripts):
    """Three commands of 1.6, 2 and 2.4 seconds, each a constant sound, and their talk."""
    sounds = [np.full(steps * scripts[0].SAMPLES, 9, "<i2") for steps in (80, 100, 120)]
    said = list(zip(SENTENCES, sounds, strict=True))
    return scripts[0].talk(said, np.random.default_rng(0))


def test_a_talk_is_loud_where_its_commands_are(scripts, talk):
    samples, commands = talk
    steps = samples.reshape(-1, scripts[0].SAMPLES)
    spans = [range(one.start, one.end) for one in commands]
    assert [len(span) for span in spans] == [80, 100, 120]
    assert [one.sentence for one in commands] == [*SENTENCES]
    loud = [step for span in spans for step in span]
    assert np.flatnonzero(steps.all(axis=1)).tolist() == loud
    assert np.flatnonzero(steps.any(axis=1)).tolist() == loud


def test_the_target_of_a_window_has_its_whole_commands_with_their_times(scripts):
    make = scripts[0]
    first, second, third = SENTENCES
    spans = (10, 90, first), (120, 220, second), (245, 365, third)
    commands = [make.Command(*span) for span in spans]
    assert make.text_of(commands, 0, True) == (
        f"<|0.20|> {first}<|1.80|><|2.40|> {second}<|4.40|><|4.90|>"
    )
    # The end of the first command is heard, and its words are not; the window begins in a pause.
    assert make.text_of(commands, 87, True) == (f"<|0.66|> {second}<|2.66|><|3.16|>")
    assert make.text_of(commands, 115, True) == (
        f"<|0.10|> {second}<|2.10|><|2.60|> {third}<|5.00|>"
    )
    assert make.text_of(commands, 125, True).startswith(f"<|0.00|> {second}<|1.90|>")
    assert make.text_of(commands, 115, False) == f"<|notimestamps|> {second} {third}"
    assert make.text_of(commands, 365, True) == "<|0.00|>"
    assert make.text_of(commands, 365, False) == "<|notimestamps|>"


def test_a_model_that_says_the_targets_hears_each_command_once(scripts, talk):
    """The decoder's rule for the next window, on what the model learns to say.

    As in transformers, the only segment of a window begins with it, unless a command is cut.
    """
    make, (samples, commands) = scripts[0], talk
    zero, begin, begins, said, ends = 1000, 0, [], [], []
    while begin < len(samples) // make.SAMPLES:
        parts = re.findall(r"<\|([\d.]+)\|> ?([^<]*)", make.text_of(commands, begin, True))
        tokens = []
        for time, words in parts:
            tokens += [zero + round(make.STEPS * float(time)), *[len(said)] * bool(words)]
            said += [words] * bool(words)
        segments, step = segments_of(tokens, zero, 2 * begin, 2 * make.WINDOW)
        begins.append(begin)
        for one in segments if parts[0][1] else ():
            ends.append(round(one.end * make.STEPS))
            place = len(ends) - 1
            assert round(one.start * make.STEPS) in (commands[place].start, begin)
        begin += step // 2
    assert said == [*SENTENCES] and ends == [one.end for one in commands]
    assert len(begins) > 1


@pytest.fixture(scope="module")
def data(scripts, talk, tmp_path_factory):
    """The files of a data set with one talk, which is not of speech."""
    folder, (samples, commands) = tmp_path_factory.mktemp("speech"), talk
    scripts[0].write_start(folder / "start", 1, 1)
    scripts[0].write(folder / "talk.wav", samples)
    for split in ("train", "validation"):
        some = scripts[0].lines("talk.wav", commands, False, np.random.default_rng(1))
        (folder / f"{split}.tsv").write_text("".join("\t".join(line) + "\n" for line in some))
    return folder


@pytest.mark.ci
def test_the_vocabulary_has_every_word_and_time(scripts, data):
    make = scripts[0]
    vocabulary = tasks.recorded_vocabulary(*checkpoints.vocabulary_from(data / "start")).plain()
    words = " ".join(sorted({*" ".join([*make.PATTERNS, *make.WORDS.values()]).split()}))
    words = re.sub(r"{\w+} ?", "", words)
    text = f"{make.stamp(0)} {words}{make.stamp(make.WINDOW)}"
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text and len(ids) < 2 * len(words.split())
    assert ids[-1] - ids[0] == make.WINDOW == vocabulary.vocab_size - 1 - ids[0]
    assert max(ids[1:-1]) < vocabulary.eos_id < vocabulary.encode(make.UNTIMED)[0] == ids[0] - 1


@pytest.mark.ci
def test_a_trained_whisper_transcribes_sounds_of_any_length(data, tmp_path, capsys, monkeypatch):
    """Its export has the settings that timestamps need."""
    monkeypatch.chdir(ROOT)
    given = ["--gin_file=configs/speech/train_target.gin", f"--gin.DATA={str(data)!r}"]
    sizes = [
        "--gin.STEPS=2",
        "--gin.WARMUP=1",
        "--gin.BATCH_SIZE=2",
        f"--output_dir={tmp_path / 'target'}",
    ]
    assert cli.main(["train", *given, *sizes]) == 0
    given = [f"--target={tmp_path}/target/export", "--gin_file=transcribe.gin", "--max_length=8"]
    out = tmp_path / "out.jsonl"
    files = [f"--text={data}/talk.wav", f"--subtitles={tmp_path}/talk.srt", f"--output_file={out}"]
    assert cli.main(["decode", *given, *files]) == 0, capsys.readouterr().err
    line = json.loads(out.read_text())
    assert len(line["segments"]) > 1 and (tmp_path / "talk.srt").exists()


def test_subtitles_are_compared_by_their_words_and_times(scripts, tmp_path):
    speech = scripts[1]
    said = [speech.Subtitle(1, 2, "go left"), speech.Subtitle(63, 65, "call anna")]
    (tmp_path / "a.srt").write_text(
        "1\n00:00:01,100 --> 00:00:02,300\ngo right\n\n"
        "2\n00:01:03,300 --> 00:01:08,000\ncall anna\n"
    )
    made = speech.read(tmp_path / "a.srt")
    assert made == [speech.Subtitle(1.1, 2.3, "go right"), speech.Subtitle(63.3, 68, "call anna")]
    found = speech.compared(said, made)
    assert found == pytest.approx(
        {"subtitles": 2, "in_time": 1, "begins": 0.1, "ends": 0.3, "wer": 25}
    )
