"""Makes tests/golden/prompts, tiny tokenizers with byte-pair merges, with transformers' ids.

pip install 'transformers<5' sentencepiece protobuf
python scripts/golden/make_golden_prompts.py

transformers 5 gives the same, except that its LlamaTokenizer puts no space before a text that
begins with one, nor after a special token. SentencePiece, with which LLaMA was trained, does.
"""

import io
import json
import random
from pathlib import Path

import sentencepiece
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "prompts"
LINES = [
    "The house is wonderful, and the garden behind it is large.",
    "A small model drafts tokens, and a large model decides which of them are kept.",
    "The baker sleeps; the cats watch the door, the birds and the river.",
    "Translate English to German: The house is small. Das Haus ist klein.",
    "She said: 'It's late, isn't it?' He didn't answer, but they've known since 1998.",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 22))",
    "Ein kleines Modell schlägt Wörter vor, ein großes prüft sie.",
]
TEXTS = [
    "The house is small.",
    " The garden",
    "  two  spaces ",
    "\tdef add(a, b):\n\n    return 12345",
    "It's late, isn't it ? They 've gone .",
    "Größe 😀 漢字 e\u0301\u00a0x",
    "a{eos}b {bos} c",
    "Q: river\nA:",
]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA2_CHAT = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set content = message['content'] %}"
    "{% if loop.index0 == 0 and system %}{% set content = '<<SYS>>' + system + content %}"
    "{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA3_CHAT = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "Answer in one line." %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" + system + "<|eot_id|>" }}
{%- if tools is not none %}
    {{- tools | tojson(indent=4) }}
{%- endif %}
{% for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {% generation %}
    {{- message['content'] | trim + '<|eot_id|>' }}
    {% endgeneration %}
    {% if loop.last %}
        {%- break %}
    {% endif %}
{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

T5GEMMA_CHAT = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] | trim }}"
    "{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


def write(folder: Path, **files: object) -> None:
    for name, value in files.items():
        path = folder / name.replace("__", ".")
        path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1) + "\n")


def llama2(folder: Path) -> None:
    """Writes a SentencePiece model like LLaMA's: BPE with pieces for bytes, and BOS."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 3),
        model_writer=made,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(made.getvalue())
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": None}
    write(
        folder,
        tokenizer_config__json={
            "tokenizer_class": "LlamaTokenizer",
            "add_bos_token": True,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
            "chat_template": LLAMA2_CHAT,
            "sp_model_kwargs": {},
            **names,
        },
        config__json={"model_type": "llama"},
    )


def llama2_json(folder: Path, source: Path) -> None:
    """Writes the tokenizer.json that transformers makes of the model."""
    AutoTokenizer.from_pretrained(source).backend_tokenizer.save(str(folder / "tokenizer.json"))
    record = json.loads((source / "tokenizer_config.json").read_text())
    del record["add_bos_token"], record["add_eos_token"]  # which the file says
    write(folder, tokenizer_config__json=record, config__json={"model_type": "llama"})


def trained(special: list[str], size: int) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(LINES * 3, trainer)
    made.decoder = decoders.ByteLevel()
    return made


def llama3(folder: Path) -> None:
    """Writes a tokenizer.json like LLaMA 3's: bytes, no unknown, and id 0 is a word."""
    made = trained([], 380)
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    names = ["begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id"]
    tokens = [f"<|{name}|>" for name in names]
    made.add_special_tokens([AddedToken(name, normalized=False) for name in tokens])
    bos = (tokens[0], made.token_to_id(tokens[0]))
    template = processors.TemplateProcessing(
        single=f"{bos[0]} $A", pair=f"{bos[0]} $A {bos[0]} $B", special_tokens=[bos]
    )
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    made.save(str(folder / "tokenizer.json"))
    write(
        folder,
        tokenizer_config__json={
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[0],
            "eos_token": tokens[-1],
            "clean_up_tokenization_spaces": True,
        },
        chat_template__jinja=LLAMA3_CHAT,
        config__json={"model_type": "llama"},
    )


def opt(folder: Path) -> None:
    """Writes vocab.json and merges.txt like OPT's, which puts </s> before a prompt."""
    made = trained(["<s>", "<pad>", "</s>", "<unk>"], 380)
    made.model.save(str(folder))
    names = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    write(
        folder,
        tokenizer_config__json={
            "tokenizer_class": "GPT2Tokenizer",
            "add_bos_token": True,
            "add_prefix_space": False,
            "errors": "replace",
            **names,
        },
        special_tokens_map__json=names,
        config__json={"model_type": "opt"},
    )


def t5gemma(folder: Path) -> None:
    """Writes a tokenizer.json like T5Gemma's: merges over characters, and bytes for the others."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    trainer = BpeTrainer(vocab_size=420, special_tokens=special + bytes_, show_progress=False)
    made.train_from_iterator(LINES * 3, trainer)
    record = json.loads(made.to_str())
    kept = [token for token in record["added_tokens"] if token["content"] in special]
    made = Tokenizer.from_str(json.dumps(record | {"added_tokens": kept}))
    made.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("<h1>", normalized=False)])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(steps)
    made.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)]
    )
    made.save(str(folder / "tokenizer.json"))
    names = ("pad", "eos", "bos", "unk")
    write(
        folder,
        tokenizer_config__json={
            "tokenizer_class": "GemmaTokenizer",
            "add_bos_token": True,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
            "chat_template": T5GEMMA_CHAT,
            "sp_model_kwargs": {},
            "spaces_between_special_tokens": False,
            "additional_special_tokens": special[5:],
            **{f"{name}_token": f"<{name}>" for name in names},
        },
        config__json={"model_type": "t5gemma"},
    )


def golden(folder: Path) -> dict:
    """Returns transformers' ids and texts."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    draws, size = random.Random(0), len(tokenizer)
    found: dict = {"ids": {}, "outputs": [], "before": tokenizer("").input_ids}
    for text in TEXTS:
        text = text.format(eos=tokenizer.eos_token, bos=tokenizer.bos_token)
        found["ids"][text] = ids = tokenizer(text).input_ids
        for length in (1, 5):
            more = [draws.randrange(3, size) for _ in range(length)]
            more = [id for id in more if id != tokenizer.eos_token_id]
            how = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
            ids = [] if folder.name == "t5gemma" else ids  # which an encoder reads
            prompt, whole = tokenizer.decode(ids, **how), tokenizer.decode([*ids, *more], **how)
            found["outputs"].append([more, whole[len(prompt) :]])
    if tokenizer.chat_template:
        asked = [{"role": "user", "content": "What is the river? "}]
        how = {"add_generation_prompt": True, "return_dict": False}
        found["chat"] = tokenizer.apply_chat_template(asked, **how)
    return found


def main() -> None:
    makers = {"llama2": llama2, "llama3": llama3, "opt": opt, "t5gemma": t5gemma}
    for name, make in makers.items():
        folder = GOLDEN / name
        if not folder.exists():
            folder.mkdir(parents=True)
            make(folder)
    if not (folder := GOLDEN / "llama2_json").exists():
        folder.mkdir()
        llama2_json(folder, GOLDEN / "llama2")
    found = {folder.name: golden(folder) for folder in sorted(GOLDEN.iterdir()) if folder.is_dir()}
    lines = [f" {json.dumps(name)}: {json.dumps(one)}" for name, one in found.items()]
    (GOLDEN / "golden.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
