"""Commands on sound, with the golden Whisper: pytest tests/cli/test_cli_sound.py"""

import json
import shutil
import wave
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from specdec import cli, tasks

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "hf_whisper"
WINDOW = 3840  # samples, 24 frames
LETTERS = 'Ġabcdefghijklmnopqrstuvwxyz0123456789.,?!-:;"'
END, ROLES = "<|endoftext|>", ("startoftranscript", "en", "de", "translate", "transcribe")
# The outputs behind the prefix of transformers 5.24's `generate` for the same features.
PREFIX = [47, 50, 51]
OUTPUTS = {
    "a.wav": [38, 38, 56, *[38] * 8, 53, 42, 42, 38, 38, 42, 38, 38, 42, *[38] * 4],
    "b.wav": [38, 45],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Makes a folder with the model, which has a tokenizer like those of its releases, and WAVs."""
    made = tmp_path_factory.mktemp("sound")
    model = shutil.copytree(GOLDEN, made / "whisper")
    tokenizer = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(LETTERS)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END, *(f"<|{x}|>" for x in (*ROLES, "notimestamps"))])
    tokenizer.add_tokens([f"<|{0.02 * step:.2f}|>" for step in range(9)])
    tokenizer.save(str(model / "tokenizer.json"))
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), END)
    record = {"tokenizer_class": "WhisperTokenizer", **names}
    (model / "tokenizer_config.json").write_text(json.dumps(record))
    sound = np.load(GOLDEN / "golden.npz")["sound"]
    write(made / "a.wav", sound[:WINDOW])
    write(made / "b.wav", sound[6000:9000])
    write(made / "long.wav", sound)
    write(made / "none.wav", sound[:0])
    (made / "text.wav").write_text("not a sound")
    return made


def write(file: Path, samples: np.ndarray, rate: int = 16_000) -> None:
    with wave.open(str(file), "wb") as opened:
        opened.setnchannels(1)
        opened.setsampwidth(2)
        opened.setframerate(rate)
        opened.writeframes(samples.tobytes())


@pytest.fixture
def decoded(folder, monkeypatch, capsys):
    """Decodes in the folder of the sounds; returns the code, and what was printed."""
    monkeypatch.chdir(folder)

    def run(*argv):
        flags = ["--target=whisper", "--gin_file=transcribe.gin", "--gin.LANGUAGE='en'"]
        lengths = "--gin.TASK_FEATURE_LENGTHS={'inputs': 1, 'targets': 27}"
        try:
            code = cli.main(["decode", *flags, lengths, *argv])
        except SystemExit as stopped:
            code = stopped.code
        return code, *capsys.readouterr()

    return run


@pytest.mark.ci
def test_a_file_becomes_the_tokens_of_transformers(decoded, folder):
    texts = [f"--text={name}" for name in OUTPUTS]
    code, _, err = decoded(*texts, "--text=b.wav#0", "--gin.BATCH_SIZE=3", "--output_file=out")
    assert code == 0, err
    lines = [json.loads(line) for line in (folder / "out").read_text().splitlines()]
    expected = [*OUTPUTS.values(), OUTPUTS["b.wav"]]
    assert [line["tokens"] for line in lines] == [PREFIX + ids for ids in expected]
    assert lines[1]["prediction"] == ","  # without the names of language and task


@pytest.mark.slow
def test_recorded_sounds_predict_the_speed_of_a_draft_on_the_shared_encoder(
    folder, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    trim = ["--shared_encoder", "--decoder_layers=0", "--output=draft"]
    assert cli.main(["trim", "--input=whisper", *trim]) == 0
    given = ["--target=whisper", "--draft=draft", "--gin_file=transcribe.gin", "--text=b.wav"]
    given += ["--gin.LANGUAGE='en'", "--gin.TASK_FEATURE_LENGTHS={'inputs': 1, 'targets': 27}"]
    recorded = ["--tokens=4", "--output_file=passes.jsonl"]
    assert cli.main(["acceptance", *given, *recorded]) == 0
    assert cli.main(["forecast", *given, "--passes=passes.jsonl", "--gammas=1-2"]) == 0
    assert "best     " in capsys.readouterr().out


@pytest.mark.ci
@pytest.mark.parametrize(
    "text, says",
    [
        ("missing.wav", "sound 'missing.wav' cannot be read (No such file or directory); give a"),
        ("text.wav", "text.wav is no sound that can be read (Format not recognised); convert it"),
        ("none.wav", "sound 'none.wav' has no samples; give a file or a part that has some"),
        ("a.wav#1", "sound 'a.wav#1' has no samples"),
    ],
)
def test_what_cannot_be_heard_is_one_line(decoded, text, says):
    code, out, err = decoded(f"--text={text}")
    (line,) = (line for line in err.splitlines() if line.startswith("specdec: "))
    assert code == 2 and says in line and not out


@pytest.mark.ci
def test_other_commands_refuse_a_long_sound(folder, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(folder)
    (tmp_path / "pairs").write_text("long.wav\ta\n")
    given = ["--target=whisper", "--gin_file=transcribe.gin", "--max_length=27"]
    given += [f"--input_file={tmp_path / 'pairs'}", f"--output_dir={tmp_path / 'out'}"]
    assert cli.main(["eval", *given]) == 2
    says = "is 0.7 s long, and the target reads 0.24 in one window; give it to `specdec decode`"
    assert says in capsys.readouterr().err


def test_parts_of_a_long_sound_begin_at_any_second(folder):
    vocabulary = tasks.WithSound(tasks.Bytes()).plain()
    name, shape = folder / "long.wav", np.zeros([2, 8, 24], np.float32)
    found = vocabulary.inputs(np.zeros([2, 1], np.int32), [f"{name}#0.24"], shape)
    sound = np.load(GOLDEN / "golden.npz")["sound"][WINDOW : 2 * WINDOW].astype(np.float32)
    np.testing.assert_array_equal(found[0], tasks.sound.log_mel(sound[None] / 2**15, 8)[0])
    assert not found[1].any()  # a row of padding


def test_a_task_checks_that_its_files_are_there(folder):
    (folder / "task.tsv").write_text("b.wav\ta text\nmissing.wav\tanother\n")
    files, columns = {"test": str(folder / "task.tsv")}, ("files", "targets")
    with pytest.raises(tasks.TaskError, match="task.tsv, line 2: there is no file .*missing.wav;"):
        tasks.local_task("sounds", files, tasks.WithSound(tasks.Bytes()), columns=columns)
