"""Makes docs/reference/formats.md of the schemas in specdec/schemas.

python scripts/make_formats.py
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdec.common import schemas

FILE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "formats.md"
HEAD = """# What commands read and write

Text files, checkpoints' text side, and then what each command writes.

## Lines of texts

One rule holds for standard input, `--input_file`, `--pairs` and files of tasks, all in UTF-8:

- A line ends in LF or CRLF. The ending is not part of its text.
- Any other CR is a space.
- A byte-order mark at the begin of a file or of standard input is not part of the text.

The text of `--text` follows the same rule, and may have several lines.

A line of `--input_file` is an input, or input TAB output. All lines are of one kind.

## The text side of a checkpoint

Ids of start and ends, settings of generation and added tokens are read from all files of a
checkpoint's directory. `specdec check DIR` and `specdec decode --target=DIR --dry_run` show each
with the file that it is from. Every command uses them, and every format that `specdec convert`
writes keeps the files. T5X itself reads none of them, which `convert` says.

| file | what is read |
|---|---|
| `generation_config.json` | start, ends, and all settings of generation |
| `config.json` | the same, only where there is no `generation_config.json` |
| `tokenizer_config.json` | added tokens, `legacy`, `clean_up_tokenization_spaces` |
| `added_tokens.json`, `special_tokens_map.json` | added tokens of transformers before 4.34 |
| `spiece.model`, or else `tokenizer.json` | the pieces and their ids |

**Ids.** Outputs start from `decoder_start_token_id`, or else from `bos_token_id`, or else from
the padding id. They end in any id of `eos_token_id`. Inputs end in `</s>`. Padding, end and
unknown of the tokenizer must be T5's ids, 0, 1 and 2; other ids are refused.

**Settings that are obeyed.** `repetition_penalty`, `no_repeat_ngram_size`, `bad_words_ids`,
`suppress_tokens`, `begin_suppress_tokens`, `min_length`, `min_new_tokens`, `forced_bos_token_id`
and `forced_eos_token_id`, as `generate` does. A setting that the run has itself, other than its
default, takes the place of the checkpoint's.

**Settings that are refused** by one line with key, value, file and remedy: beams, several
sequences, `do_sample` and its settings where the run does not draw so, everything else that would
change the output, and keys that are not known. `--generation_settings=ignore`
(`GENERATION_SETTINGS = 'ignore'` in gin, `generation_settings="ignore"` of `InteractiveModel`)
runs without the settings. Start and ends stay the checkpoint's.

**Lengths are the run's.** `max_length` and `max_new_tokens` are not read: outputs hold as many
tokens as `TASK_FEATURE_LENGTHS` or `--max_length` says. `forced_eos_token_id` is forced at that
length.

**Contradictions** are refused: an added token with two ids, special tokens of a tokenizer that are
not the pieces with T5's ids, and a `generation_config.json` that claims to repeat `config.json`
(`_from_model_config`) and does not, which two versions of transformers read differently.

**Untied output layers.** An untied directory that `specdec convert` writes gives the same logits in
transformers 4 and 5. Version 5 sets `tie_word_embeddings` to true when it loads the model, keeps an
output layer that differs from the embedding, and warns. Do not call `resize_token_embeddings` or
`tie_weights` there: both replace the output layer.

**Texts** are encoded and decoded as transformers does with the same directory: with
`spiece.model` as transformers 4's T5Tokenizer, and with `tokenizer.json` alone as transformers
5's. Four things differ:

- A special token for padding, end or unknown that is written out in a text is text. It ends
  nothing.
- Unknown is shown as `⁇`, as SentencePiece does. Sentinels and other added tokens are shown, also
  those that transformers calls special.
- Where a `tokenizer.json` has pieces for bytes, a character without a piece becomes bytes, as in
  the SentencePiece model. transformers 5 makes it unknown.
- ByT5's sentinels have transformers' ids in a directory of transformers, and seqio's elsewhere.
  Between bytes and added tokens a text has no spaces, as in version 5.

A task over files takes the vocabulary of the target's checkpoint, added tokens included, where
`VOCABULARY` is None.

One vocabulary in two files gives the same ids but for one kind of text: SentencePiece composes
characters before it looks for pieces, and `tokenizer.json` composes fewer. A decomposed Korean
syllable is a piece to `spiece.model` and unknown to `tokenizer.json`; transformers does the same.
Seqio's vocabulary, `tasks.SentencePiece(path, 100)`, finds sentinels only where a space is before
them.

## What commands write

One JSON object a line, UTF-8. Made by `python scripts/make_formats.py` from the schemas (JSON
Schema, draft 2020-12) that the package has in `specdec/common/schemas/`:

```python
from specdec.common import schemas

schemas.schema("decode")["required"]  # the fields that every line has
schemas.version("decode")
```

Next to the lines are the settings, `FILE.gin` (`run.gin` for `specdec eval`), in which the comment
`# format of decode = 1`, for example, says the version; a file without one is of version 1. A
version changes when a field is removed, renamed or gets another meaning or unit; readers should
pass over fields that they do not know. A command goes on with a file of its own version only.
"""
TITLES = {
    "decode": "`specdec decode --output_file`, and `predictions.jsonl` of `specdec eval`",
    "beams": "`specdec decode --num_beams`, and `predictions.jsonl` of `specdec eval --num_beams`",
    "bench": "`specdec bench --output_file`",
    "score": "`specdec score --output_file`",
    "acceptance": "`specdec acceptance --output_file`",
    "forecast": "`specdec forecast --output_file`",
}


def page() -> str:
    """The text of docs/reference/formats.md."""
    return "\n".join([HEAD, *(line for kind in TITLES for line in section(kind))])


def section(kind: str) -> Iterator[str]:
    """A command's heading and tables, one for each form that a line may have."""
    schema = schemas.schema(kind)
    yield from (
        f"## {TITLES[kind]}",
        "",
        f"Version {schemas.version(kind)}. {schema['description']}",
        "",
    )
    for form in schema.get("$defs", {}).values():
        yield from (f"### {form['title'].capitalize()}", "", form["description"], "", *table(form))
    if "$defs" not in schema:
        yield from table(schema)


def table(schema: dict[str, Any]) -> Iterator[str]:
    """A row for each field; those that may be absent say so in their description."""
    yield from ("| field | type | meaning |", "|---|---|---|")
    for name, field in schema["properties"].items():
        yield f"| `{name}` | {type_of(field)} | {field['description']} |"
    yield ""


def type_of(field: dict[str, Any]) -> str:
    """'array of integer', for example, or the values of an enumeration."""
    if "enum" in field:
        return " or ".join(f'`"{value}"`' for value in field["enum"])
    inner = field.get("items") or field.get("additionalProperties")
    return f"{field['type']} of {type_of(inner)}" if inner else field["type"]


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
