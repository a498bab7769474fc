"""What a checkpoint says of its texts is obeyed or refused: pytest tests/test_generation.py

The golden checkpoints were run by transformers 4 and 5: scripts/golden/make_golden_generation.py.
"""

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from support import PromptTable

from specdec import InteractiveModel, Plan, checkpoints, cli, sampling, tasks
from specdec.checkpoints import CheckpointError
from specdec.checkpoints import generation_settings as generation
from specdec.checkpoints.generation import read as settings_of
from specdec.checkpoints.vocabulary_fit import check_fit
from specdec.common.values import check
from specdec.models.t5 import T5Target
from specdec.sampling import Greedy, Sampling, before_each, standardised
from specdec.tasks.added_tokens import AddedToken, Tokenization, split

GOLDEN = Path(__file__).parent / "golden" / "generation"
RECORDS = {v: json.loads((GOLDEN / f"cases_{v}.json").read_text())["cases"] for v in ("4", "5")}
LENGTH = 10  # tokens of an output, at most
ALL = [(version, name) for version, cases in RECORDS.items() for name in cases]
OBEYED = [(version, name) for version, name in ALL if "refused" not in RECORDS[version][name]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Makes the directory of a golden checkpoint, with keys of its JSON files changed."""

    @functools.cache
    def made(version: str, name: str) -> Path:
        return _write(tmp_path_factory.mktemp(f"{name}_{version}"), version, name)

    return made


@pytest.fixture
def changed(tmp_path):
    """Makes a golden checkpoint with keys of one JSON file changed; None takes a key out."""

    def made(file: str, version: str = "4", name: str = "plain", **changes) -> Path:
        folder = _write(tmp_path, version, name)
        record = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
        kept = {k: v for k, v in (record | changes).items() if v is not None}
        (folder / file).write_text(json.dumps(kept))
        return folder

    return made


def _write(folder: Path, version: str, name: str) -> Path:
    for file, record in RECORDS[version][name]["files"].items():
        (folder / file).write_text(json.dumps(record))
    for file in ("model.safetensors", *["spiece.model"] * (version == "4")):
        shutil.copy(GOLDEN / file, folder)
    return folder


def vocabulary_of(directory: Path):
    return tasks.for_texts(tasks.recorded_vocabulary(*checkpoints.vocabulary_from(directory)))


def plan_of(directory: Path, rule=None, **options) -> Plan:
    """The plan of a checkpoint, its settings obeyed."""
    text = checkpoints.text_model_from(directory)
    ends = generation.stop_ids(text, vocabulary_of(directory))
    model = checkpoints.model_from(directory)
    plan = Plan(model, None, None, None, rule or Greedy(), LENGTH, ends)
    return generation.obeyed(plan, text, **options)


@pytest.mark.parametrize("version", RECORDS)
def test_ids_and_texts_are_those_of_transformers(version, directory):
    for name, case in RECORDS[version].items():
        vocabulary = vocabulary_of(directory(version, name))
        for row in case["texts"]:
            assert [*vocabulary.encode(row["text"]), 1] == row["inputs"], (name, row["text"])
            assert vocabulary.decode(row["shown"]) == row["shown_text"], (name, row["shown"])


def test_tokens_that_include_white_space_take_added_white_space_away():
    newline, wide = AddedToken(9, "\n"), AddedToken(8, "<a>", lstrip=True, rstrip=True)
    assert list(split("x\n <a> \ny", (newline, wide))) == ["x", newline, wide, newline, "y"]
    assert list(split("x\n<a>\n\ny", (newline, wide))) == ["x", wide, newline, "y"]


@functools.partial(jax.jit, static_argnames="target")
def logits_of(params, inputs, fed, *, target: T5Target):
    cache = target.prefill(params, inputs, fed.shape[1])
    return target.decode(params, fed, cache)[0].logits


@functools.partial(jax.jit, static_argnames=("rule", "stop_ids"))
def choices_of(logits, fed, *, rule, stop_ids):
    left, _ = standardised(rule, logits, *before_each(fed, stop_ids, None))
    return left.argmax(-1)


def test_ids_out_are_those_of_generate(directory):
    """Token by token: each is the choice of the plan after those before it."""
    rows = [row for case in OBEYED for row in RECORDS[case[0]][case[1]]["texts"]]
    inputs, fed = (np.zeros([len(rows), n], np.int32) for n in (32, LENGTH))
    for index, row in enumerate(rows):
        inputs[index, : len(row["inputs"])] = row["inputs"]
        fed[index, : len(row["output"])] = [row["start"], *row["output"][:-1]]
    plain = directory("4", "plain")
    params = checkpoints.load(plain)
    logits = logits_of(params, inputs, fed, target=checkpoints.model_from(plain))
    for number, case in enumerate(OBEYED):
        plan, own = plan_of(directory(*case)), slice(3 * number, 3 * number + 3)
        chosen = choices_of(logits[own], fed[own], rule=plan.sampling, stop_ids=plan.stop_ids)
        for choice, row in zip(chosen, rows[own], strict=True):
            assert plan.target.config.decoder_start_id == row["start"], case
            output = row["output"]
            assert choice[: len(output)].tolist() == output, case
            assert not set(output[:-1]) & set(plan.stop_ids), case
            assert len(output) == LENGTH or output[-1] in plan.stop_ids, case


@pytest.mark.parametrize("version, name", sorted({*ALL} - {*OBEYED}))
def test_what_is_not_done_is_refused(version, name, directory):
    key = RECORDS[version][name]["refused"]
    with pytest.raises(CheckpointError, match=f"generation_config.json has {key} .*; ") as raised:
        plan_of(directory(version, name))
    assert "\n" not in str(raised.value) and "--generation_settings=ignore" in str(raised.value)


def end_to_end(directory, version, name):
    """Texts through the whole engine."""
    model = InteractiveModel(directory(version, name), lengths={"inputs": 32, "targets": LENGTH})
    rows = RECORDS[version][name]["texts"]
    for row, decoded in zip(rows, model.decode([row["text"] for row in rows]), strict=True):
        assert decoded.tokens == row["output"], (version, name)


def test_an_interactive_model_obeys(directory):
    end_to_end(directory, "4", "all_at_once")


def test_commands_obey_and_can_be_told_not_to(directory, tmp_path, capsys):
    """One program serves both, as their plans are equal."""
    rows = RECORDS["5"]["plain"]["texts"]
    for name, flags in (("plain", []), ("beams", ["--generation_settings=ignore"])):
        file = tmp_path / f"{name}.jsonl"
        flags += [f"--max_length={LENGTH}", f"--output_file={file}", f"--text={rows[0]['text']}"]
        assert cli.main(["decode", f"--target={directory('5', name)}", *flags]) == 0
        assert json.loads(file.read_text())["tokens"] == rows[0]["output"]
    capsys.readouterr()


def test_what_is_read_is_shown(directory, capsys):
    path = directory("4", "added_tokens")
    assert cli.main(["decode", f"--target={path}", "--text=a{b", "--dry_run"]) == 0
    shown = capsys.readouterr().out
    assert cli.main(["check", str(path), str(directory("4", "all_at_once"))]) == 0
    checked = capsys.readouterr().out
    for line in (
        "added: '{' 41, '}' 42, '\\n' 43, '<sep>' 44",
        "generation: start 0 (generation_config.json), ends 1 (generation_config.json)",
        "ids: padding 0, end 1, unknown 2 (spiece.model)",
    ):
        assert f"#   {line}" in shown
        what, _, note = line.partition(": ")
        assert f"PASS {what:<10} {note}" in checked
    assert "repetition_penalty 1.3 (generation_config.json)" in checked


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"forced_decoder_ids": [[1, 5]]}, "has forced_decoder_ids .*not supported; "),
        ({"stop_strings": ["."]}, "has stop_strings .*not supported; "),
        ({"num_return_sequences": 2}, "has num_return_sequences 2, .*not supported; "),
        ({"surpress_tokens": [3]}, "has surpress_tokens .*an unknown setting; "),
        ({"suppress_tokens": ["a"]}, "suppress_tokens is .*not a list of token ids; correct it"),
        ({"suppress_tokens": [64]}, "names token 64 but .* 64; "),
        ({"no_repeat_ngram_size": "2"}, "no_repeat_ngram_size is '2', .*; correct it"),
        ({"forced_bos_token_id": 5, "suppress_tokens": [5]}, "token 5 is in .*; correct it"),
        ({"forced_eos_token_id": 1, "suppress_tokens": [1]}, "token 1 is in .*; correct it"),
        ({"min_length": 11}, "has min_length 11, and outputs hold 10 tokens"),
        ({"min_new_tokens": 12}, "has min_new_tokens 12, and outputs hold 10 tokens"),
        ({"min_length": 40}, "has min_length 40, and outputs hold 10 tokens; raise --max_length"),
        ({"eos_token_id": None}, "has no eos_token_id, without which .* never ends a text; add it"),
        ({"eos_token_id": [1, 64]}, "eos_token_id in generation_config.json is 64, and the model"),
        ({"eos_token_id": "1"}, "has eos_token_id '1'; give a token id"),
        ({"decoder_start_token_id": -1}, "has decoder_start_token_id -1; give a token id"),
        ({"do_sample": True, "min_p": 0.1}, "draw with --top_k=50, or leave out"),
        ({"do_sample": True, "top_p": 0.9}, "draw with --temperature.*|top_k=50 --top_p=0.9"),
    ],
)
def test_settings_that_are_refused(changed, settings, message):
    directory = changed("generation_config.json", **settings)
    with pytest.raises(CheckpointError, match=message) as raised:
        plan_of(directory)
    assert "\n" not in str(raised.value) and str(directory) in str(raised.value)


def test_as_many_outputs_may_be_asked_for_as_are_drawn(changed):
    directory = changed("generation_config.json", num_return_sequences=2)
    assert plan_of(directory, num_samples=2)
    with pytest.raises(CheckpointError, match="has num_return_sequences 2"):
        plan_of(directory, num_samples=3)


def test_drawing_has_to_be_the_checkpoints(changed):
    directory = changed("generation_config.json", do_sample=True, temperature=0.7, top_p=0.9)
    right = Sampling(0.7, 50, 0.9)
    assert plan_of(directory, right).sampling == right
    assert plan_of(directory, Sampling(0.5, 5, 0.8)).sampling == Sampling(0.5, 5, 0.8)
    for wrong, says in (
        (Sampling(1.0, 50, 0.9), "has temperature 0.7, and this run has 1.0; give --temperature"),
        (Sampling(0.7, None, 0.9), "has do_sample True, .*top_k 50, .*; give --top_k=50"),
        (Sampling(0.7, 50), "has top_p 0.9, and this run has None; give --top_p=0.9"),
    ):
        with pytest.raises(CheckpointError, match=says):
            plan_of(directory, wrong)


def test_a_rule_of_drawing_that_is_not_here_is_refused(changed):
    directory = changed("generation_config.json", do_sample=True, min_p=0.1)
    with pytest.raises(CheckpointError, match="has min_p 0.1, which is not supported"):
        plan_of(directory, Sampling(1.0, 50))


def test_the_runs_own_settings_come_first(changed):
    directory = changed(
        "generation_config.json",
        repetition_penalty=1.3,
        no_repeat_ngram_size=2,
        bad_words_ids=[[5]],
    )
    own = sampling.in_order(no_repeat_ngram_size=3, others=(sampling.SuppressTokens((7,)),))
    found = plan_of(directory, sampling.with_processors(Greedy(), own)).sampling.processors
    assert found == sampling.in_order(
        repetition_penalty=1.3,
        no_repeat_ngram_size=3,
        bad_words_ids=[(5,)],
        suppress_tokens=(7,),
    )


@pytest.mark.parametrize("name, value", [("min_length", 6), ("forced_bos_token_id", 5)])
def test_what_counts_the_tokens_of_a_prompt_is_refused(changed, name, value):
    text = checkpoints.text_model_from(changed("generation_config.json", **{name: value}))
    plan = Plan(PromptTable(200), None, None, None, Greedy(), LENGTH)
    with pytest.raises(CheckpointError, match=f"{name} {value}, which counts the tokens of the pr"):
        generation.obeyed(plan, text)


@pytest.mark.parametrize("name, value", [("begin_suppress_tokens", [5]), ("min_new_tokens", 3)])
def test_a_prefix_does_not_go_with_what_counts_from_its_end(changed, name, value):
    directory = changed("generation_config.json", **{name: value})
    assert plan_of(directory, prefix=False)
    with pytest.raises(CheckpointError, match=f"{name} .*decoder prefix; drop that"):
        plan_of(directory, prefix=True)


@pytest.mark.parametrize("ends, banned", [([1, 7], ((5,),)), ([1], ((7,), (5,)))])
def test_a_bad_word_that_is_one_end_is_left_out(changed, ends, banned):
    words = {"bad_words_ids": [[1], [7], [5]], "min_length": 3, "min_new_tokens": 5}
    directory = changed("generation_config.json", eos_token_id=ends, **words)
    found = plan_of(directory).sampling.processors
    assert found == sampling.in_order(min_length=5, bad_words_ids=banned)
    other = dataclasses.replace(plan_of(directory), sampling=Greedy(), stop_ids=(1,))
    text = checkpoints.text_model_from(directory)  # its ends count, and not the plan's
    assert generation.obeyed(other, text).sampling.processors == found
    (directory / "generation_config.json").unlink()  # the plan's own end counts then
    record = json.loads((directory / "config.json").read_text()) | {"bad_words_ids": [[1], [5]]}
    (directory / "config.json").write_text(json.dumps({**record, "eos_token_id": None}))
    assert plan_of(directory).sampling.processors == sampling.in_order(bad_words_ids=[(5,)])


def test_ids_are_no_settings_in_effect_and_a_file_is_kept_as_it_is(changed):
    directory = changed("generation_config.json", transformers_version="4.1", top_k=None)
    text = checkpoints.text_model_from(directory)
    assert not text.in_effect and text.settings["eos_token_id"]
    assert text.kept()["generation"] == json.loads(
        (directory / "generation_config.json").read_text()
    )


@pytest.mark.parametrize("choice", ["", "Ignore", None, "refuse"])
def test_a_checkpoints_settings_are_obeyed_or_ignored(choice):
    with pytest.raises(ValueError, match=f"name is {choice!r}; give one of 'obey', 'ignore'"):
        check("name", choice, generation.Choice)


def test_config_json_counts_where_there_is_no_other_file(changed):
    directory = changed("config.json", no_repeat_ngram_size=2, decoder_start_token_id=5)
    assert not plan_of(directory).target.config.decoder_start_id
    (directory / "generation_config.json").unlink()
    plan = plan_of(directory)
    assert plan.target.config.decoder_start_id == 5
    assert plan.sampling.processors == (sampling.NoRepeatNGram(2),)


def test_null_is_no_setting(directory, tmp_path):
    source = directory("4", "plain")
    for file in ("config.json", "generation_config.json"):
        record = json.loads((source / file).read_text())
        (tmp_path / file).write_text(json.dumps(record | {"no_repeat_ngram_size": None}))
        assert "no_repeat_ngram_size" not in settings_of(tmp_path)
        (tmp_path / file).write_text(json.dumps(record | {"no_repeat_ngram_size": 2}))
        assert settings_of(tmp_path)["no_repeat_ngram_size"] == (2, file)
        assert "d_model" in record or file != "config.json"
        assert "d_model" not in settings_of(tmp_path)


def test_two_answers_are_refused(changed):
    changed("config.json", no_repeat_ngram_size=2)
    directory = changed("generation_config.json", _from_model_config=True)
    (directory / "config.json").write_text(
        json.dumps(RECORDS["4"]["plain"]["files"]["config.json"] | {"no_repeat_ngram_size": 2})
    )
    with pytest.raises(CheckpointError, match="contradicts itself: no_repeat_ngram_size is 2 in"):
        plan_of(directory)


def test_a_preset_has_to_start_where_the_checkpoint_says(directory):
    path = directory("4", "another_start")
    text, plan = checkpoints.text_model_from(path), plan_of(path)
    generation.check_start(plan, text)
    config = dataclasses.replace(plan.target.config, decoder_start_id=0)
    preset = dataclasses.replace(plan, target=T5Target(config))
    with pytest.raises(CheckpointError, match="start from id 5, .* model it is 0; set"):
        generation.check_start(preset, text)


def test_our_own_record_has_to_agree_about_the_start(directory, tmp_path):
    source, path = directory("4", "another_start"), tmp_path / "own"
    assert cli.main(["convert", str(source), str(path), "--format=orbax"]) == 0
    assert plan_of(path).target.config.decoder_start_id == 5
    settings = json.loads((path / "generation_config.json").read_text())
    (path / "generation_config.json").write_text(
        json.dumps(settings | {"decoder_start_token_id": 0})
    )
    with pytest.raises(CheckpointError, match="outputs start from 5 by config.json .* and 0 by"):
        checkpoints.text_model_from(path)
    (path / "generation_config.json").unlink()
    assert checkpoints.text_model_from(path).start_id == 5


@pytest.mark.parametrize(
    "file, changes, message",
    [
        ("tokenizer_config.json", {"eos_token": "<end>"}, "eos_token '<end>', and that of the "),
        ("special_tokens_map.json", {"pad_token": {"content": "</s>"}}, "pad_token '</s>', and"),
        ("tokenizer_config.json", {"do_lower_case": True}, "do_lower_case True, .*not supported"),
        ("tokenizer_config.json", {"sp_model_kwargs": {"alpha": 0.1}}, "sp_model_kwargs .*; set"),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": [1]},
            "a wrong added_tokens_decoder: expected object, got array",
        ),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"x": 1}},
            "a wrong added_tokens_decoder",
        ),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "AlbertTokenizer"},
            "class 'AlbertTok.*; save",
        ),
        ("added_tokens.json", {"{": 50}, "the added token '{' has the ids 42 and 50"),
        ("added_tokens.json", {"<extra_id_0>": 50}, "'<extra_id_0>' has the ids 40 and 50"),
    ],
)
def test_tokenizers_that_are_refused(changed, file, changes, message):
    directory = changed(file, name="added_special", **changes)
    with pytest.raises(CheckpointError, match=message) as raised:
        checkpoints.text_model_from(directory)
    assert "\n" not in str(raised.value) and "; " in str(raised.value)


def test_null_in_a_tokenizers_file_is_no_setting(changed):
    file = changed("tokenizer_config.json") / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"do_lower_case": None}))
    assert checkpoints.text_model_from(file.parent).vocabulary is not None


def test_convert_says_what_is_lost(directory, tmp_path, capsys):
    source, pieces = directory("4", "added_tokens"), str(GOLDEN / "spiece.model")
    out = str(tmp_path / "a"), "--format=orbax", f"--vocabulary={pieces}"
    assert cli.main(["convert", str(source), *out]) == 0
    assert "is without the input's 4 added tokens" in capsys.readouterr().out
    (tmp_path / "other").mkdir()
    source = _write(tmp_path / "other", "4", "plain")
    (source / "spiece.model").write_bytes(b"noise")
    assert cli.main(["convert", str(source), str(tmp_path / "b"), "--format=orbax"]) == 0
    assert "is without the input's vocabulary: vocabulary " in capsys.readouterr().out


def test_added_tokens_of_files_before_version_4_34(changed):
    """`added_tokens.json` alone has them, without flags."""
    directory = changed("tokenizer_config.json", name="added_tokens", added_tokens_decoder=None)
    vocabulary = vocabulary_of(directory)
    assert vocabulary.encode("a{b") == vocabulary_of_case("added_tokens").encode("a{b")
    assert vocabulary.vocab_size == 45


def test_sentinels_need_no_entry_and_an_entry_has_the_last_word(changed):
    directory = changed("tokenizer_config.json", name="added_tokens", added_tokens_decoder=None)
    (directory / "added_tokens.json").write_text('{"{": 41}')
    text = "a <extra_id_0> b{<extra_id_3>"
    assert vocabulary_of(directory).encode(text) == vocabulary_of_case("added_tokens").encode(text)
    entry = {"40": {"content": "<extra_id_0>", "lstrip": False, "special": True}}
    changed("tokenizer_config.json", name="added_tokens", added_tokens_decoder=entry)
    found = checkpoints.text_model_from(directory).vocabulary.tokenization.added
    assert [token.id for token in found] == [37, 38, 39, 40]
    assert found[3] == AddedToken(40, "<extra_id_0>", special=True)
    assert found[0] == AddedToken(37, "<extra_id_3>", lstrip=True, rstrip=True, special=True)


def test_an_added_token_has_one_id_in_a_tokenizer_json_too(changed):
    directory = changed(
        "added_tokens.json", version="5", name="added_tokens", **{"<extra_id_0>": 3}
    )
    with pytest.raises(CheckpointError, match="the added token '<extra_id_0>' has the ids"):
        checkpoints.text_model_from(directory)


def vocabulary_of_case(name: str):
    record = RECORDS["4"][name]["files"]["tokenizer_config.json"]["added_tokens_decoder"]
    assert {"41", "44"} <= record.keys()
    return tasks.SentencePiece(str(GOLDEN / "spiece.model"), 4, _tokenization(record)).plain()


def _tokenization(record):
    return Tokenization(
        tuple(AddedToken(int(id), token["content"]) for id, token in record.items() if int(id) > 2)
    )


@pytest.mark.ci
def test_seqio_has_the_same_ids(directory):
    path = directory("4", "added_tokens")
    definition = tasks.recorded_vocabulary(*checkpoints.vocabulary_from(path))
    ours, theirs = definition.plain(), definition.load()
    text = "a cook{the<extra_id_1> bread"
    assert theirs.encode(text) == ours.encode(text)
    assert theirs.encode_tf(text).numpy().tolist() == ours.encode(text)
    assert theirs.decode(ours.encode(text)) == ours.decode(ours.encode(text))
    assert tasks.same_vocabulary(ours, theirs)
    without = tasks.SentencePiece(str(path / "spiece.model"), 4)
    assert not tasks.same_vocabulary(ours, without.plain())


def test_a_draft_may_lack_added_tokens(directory):
    target, draft = directory("4", "added_tokens"), directory("4", "plain")
    for one, other in ((target, draft), (draft, target)):
        checkpoints.check_pair(one, other)
        check_fit(vocabulary_of(one), checkpoints.model_from(other), "draft", other)
    other = directory("4", "added_with_flags")  # has <sep> as 43, which is a newline there
    with pytest.raises(CheckpointError, match="spiece.model, .* and 4 added tokens, and spiece"):
        checkpoints.check_pair(target, other)
    with pytest.raises(ValueError, match="saved with another vocabulary"):
        check_fit(vocabulary_of(target), checkpoints.model_from(other), "draft", other)


@pytest.mark.ci
def test_seqios_own_vocabulary_needs_the_ids_too(directory, tmp_path):
    import seqio
    from sentencepiece import sentencepiece_model_pb2

    path = directory("4", "plain")
    proto = sentencepiece_model_pb2.ModelProto.FromString((path / "spiece.model").read_bytes())
    for piece, name, kind in zip(proto.pieces, ("<unk>", "<s>", "</s>"), (2, 3, 3), strict=False):
        piece.piece, piece.type = name, kind
    (tmp_path / "other.model").write_bytes(proto.SerializeToString())
    vocabulary = seqio.SentencePieceVocabulary(str(tmp_path / "other.model"))
    with pytest.raises(ValueError, match="other.model: its ids .* are none, 2 and 0, and the "):
        check_fit(vocabulary, checkpoints.model_from(path), "target")


def test_a_task_can_take_the_vocabulary_of_a_checkpoint(directory):
    path = directory("4", "added_tokens")
    assert cli.saved_vocabulary(str(path)).plain().encode("a{b") == vocabulary_of(path).encode(
        "a{b"
    )
    model = checkpoints.model_from(path)
    check_fit(cli.saved_vocabulary(str(path)).plain(), model, "target", path)
    without = tasks.SentencePiece(str(path / "spiece.model"), 4).plain()
    with pytest.raises(ValueError, match="saved with another vocabulary, .* and 4 added tokens; "):
        check_fit(without, model, "target", path)


@pytest.mark.parametrize("version", RECORDS)
@pytest.mark.parametrize("format", checkpoints.FORMATS)
def test_every_format_keeps_the_text_side(tmp_path, format, version, capsys):
    """Through a format and back to Hugging Face's."""
    source = tmp_path / "source"
    source.mkdir()
    _write(source, version, "added_tokens")
    settings = RECORDS[version]["all_at_once"]["files"]["generation_config.json"]
    (source / "generation_config.json").write_text(json.dumps(settings))
    assert cli.main(["convert", str(source), str(tmp_path / "a"), f"--format={format}"]) == 0
    said = "keeps generation settings (" in capsys.readouterr().out
    assert said == (format == "t5x")
    assert (
        cli.main(["convert", str(tmp_path / "a"), str(tmp_path / "b"), "--format=huggingface"]) == 0
    )
    expected = checkpoints.text_model_from(source)
    for folder in ("a", "b"):
        found = checkpoints.text_model_from(tmp_path / folder)
        assert found.settings == expected.settings
        assert found.vocabulary.tokenization == expected.vocabulary.tokenization
        assert checkpoints.config_from(tmp_path / folder).decoder_start_id == 3
    for file in source.iterdir():
        if file.suffix == ".json" and file.name != "config.json":
            assert json.loads((tmp_path / "b" / file.name).read_text()) == json.loads(
                file.read_text()
            )
