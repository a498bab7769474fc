"""Files that are missing, damaged or of another kind."""

from mistakes.cases import PAIR, RUN, case

GIN = {
    f"gin file {name}": case("decode", f"--gin_file=YARD/{name}", says=says)
    for name, says in {
        "noise.gin": "noise.gin is not text; give a gin file",
        "zeros.gin": "zeros.gin, line 1: Unexpected token; correct it",
        "latin1.gin": "latin1.gin is not text in UTF-8; convert it|latin1.gin is not text; give",
        "folder": "gin file .*folder not found .*; check the name",
        "none.gin": "gin file .*none.gin not found .*; check the name",
        "empty.gin": "the gin files describe no DecodeRun; include",
        "train.gin": "the gin files describe no DecodeRun; include",
        "open.gin": "open.gin: a bracket or quote is never closed; close it",
        "string.gin": "string.gin, line 2: .*; ",
        "loop.gin": "loop.gin, line 1: .*includes itself; ",
        "absent.gin": "absent.gin, line 2: gin file none.gin not found .*; check the name",
        "module.gin": "module.gin, line 2: No module named 'specdec.verifers'; ",
        "own.gin": "own_drafter.py, line 3: .*; correct it",
        "misspelt.gin": "misspelt.gin, line 2: GAMA is read by nothing; ",
        "test.tsv": "test.tsv, line 1: .*; ",
    }.items()
} | {
    "no gin file": case("decode", says="nothing says what to run; give --gin_file"),
    "a folder to search that is none": case(
        "decode",
        "--gin_file=run.gin",
        "--gin_search_paths=YARD/none",
        says="gin file run.gin not found in .*none.*; check the name",
    ),
}
TSV = {
    f"data file {name}": case(
        "decode", RUN, f"--gin.TASK_FILES={{'test': 'YARD/{name}'}}", says=says
    )
    for name, says in {
        "none.tsv": "none.tsv does not exist; check",
        "folder.tsv": "folder.tsv is a folder; give the file",
        "latin1.tsv": "latin1.tsv, line 1: not UTF-8 .*; convert the file",
        "middle.tsv": "middle.tsv, line 2: not UTF-8 .*; convert the file",
        "columns.tsv": "columns.tsv, line 1: 3 TAB-separated columns, not 2 .*; ",
        "no_tab.tsv": "no_tab.tsv, line 2: 1 TAB-separated columns, not 2 .*; ",
        "blank.tsv": "blank.tsv, line 2: 1 TAB-separated columns, not 2 .*; ",
        "empty.tsv": "empty.tsv is empty; write one example per line",
        "noise.bin": "noise.bin, line 2: not UTF-8 .*; convert",
    }.items()
} | {
    "data file elsewhere.tsv": case(
        "decode",
        RUN,
        "--gin.TASK_FILES={'test': 'YARD/elsewhere.tsv'}",
        "--gin.TASK_COLUMNS=('files', 'inputs')",
        says="elsewhere.tsv, line 1 names the file '../.*', .* not inside its folder; move",
    ),
}
PAIRS = {
    f"pairs {name}": case("score", *PAIR, f"--pairs=YARD/{name}", says=says)
    for name, says in {
        "none.tsv": "--pairs .*none.tsv cannot be read: No such file or directory; ",
        "folder": "--pairs .*folder cannot be read: it is a folder, and not a regular file; ",
        "latin1.tsv": "--pairs .*latin1.tsv, line 1.* not UTF-8.*; convert",
        "no_tab.tsv": "--pairs .*no_tab.tsv, line 2.* no TAB; give input TAB output",
        "empty.tsv": "--pairs .*empty.tsv .*nothing.*; give",
        "blank.tsv": "--pairs .*blank.tsv, line 2.* no TAB; give input TAB output",
        "middle.tsv": "--pairs .*middle.tsv, line .* not UTF-8.*; convert",
        "noise.bin": "--pairs .*noise.bin, line 1.*; ",
    }.items()
} | {
    "score of nothing": case(
        "score", *PAIR, "--pairs=-", says="standard input has nothing to score; give"
    ),
    "pairs in Latin-1 on stdin": case(
        "score",
        *PAIR,
        "--pairs=-",
        stdin=b"W\xf6rter\tmots\n",
        says="line 1.* not UTF-8.*; convert",
    ),
    "pairs without a task": case("score", *PAIR, says="no task and no text; give --input_file"),
    "a pair too long": case(
        "score",
        *PAIR,
        "--gin.TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 8}",
        "--gin.BUCKETS=()",
        "--pairs=YARD/long.tsv",
        late=True,
        says="text 1 is 39 tokens long .*; give --gin.TASK_FEATURE_LENGTHS=",
    ),
}
TEXTS = {
    "text too long": case(
        "decode",
        *PAIR,
        "--gin.TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 8}",
        "--gin.BUCKETS=()",
        "--text=much too long",
        late=True,
        says="text 1 is 14 tokens long .*; give --gin.TASK_FEATURE_LENGTHS=",
    ),
    "text in Latin-1": case(
        "decode", *PAIR, "--text=W\udcf6rter", late=True, says="--text .*not UTF-8.*; convert"
    ),
    "text in Latin-1 on stdin": case(
        "decode",
        *PAIR,
        stdin=b"W\xf6rter\n",
        late=True,
        says="standard input, line 1.* not UTF-8.*; convert",
    ),
    "buckets of texts": case(
        "decode",
        *PAIR,
        "--gin.TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 8}",
        "--text=a",
        says=r"buckets is \(32, 64, 128, 256\); give ascending lengths below 8",
    ),
    "nothing on stdin": case("decode", *PAIR, says="standard input has nothing to decode; give"),
    "nothing to try": case(
        "decode", *PAIR, "--dry_run", says="standard input has nothing to decode; give"
    ),
}


CHECKPOINTS = (
    {
        f"checkpoint {name}": case("decode", RUN, f"--gin.CHECKPOINT_PATH='YARD/{name}'", says=says)
        for name, says in {
            "config_model_zero": "config.json does not describe .*emb_dim is 0; give",
            "none": "checkpoint .*none does not exist; .* holds",
            "test.tsv": "checkpoint .*test.tsv is a file; give its directory",
            "folder": "no checkpoint in .*folder: .*; give the directory",
            "narrow": "the target has 100 output ids but the vocabulary 259.*; ",
            "no_config": "no checkpoint in .*no_config: .*; give the directory",
            "config_noise": "config.json is not JSON .*; copy it again",
            "config_text": "config.json is not JSON .*; copy it again",
            "config_list": "config.json is no such JSON object.*; copy it again",
            "config_version": "config.json has format version 99 .*; update it",
            "config_family": "config.json: .*'rnn'.*; ",
            "config_family_kind": "config.json has a wrong family: expected str, got int; ",
            "config_model_kind": "config.json has a wrong model: expected object, got array; ",
            "config_model_fields": "config.json does not describe a model .*width.*; its fields",
            "config_model_word": "config.json does not describe .*emb_dim is 'eleven'; give",
            "config_model_dtype": "config.json does not describe .*dtype is 'float99'; give one of",
            "config_model_activations": "config.json does not describe .*'swish'; known",
            "config_model_activations_kind": "config.json does not describe .*activations is 3; ",
            "config_vocabulary_kind": "config.json has a wrong vocabulary.*; ",
            "config_vocabulary_elsewhere": "config.json names the file '../pieces/.*'.*; move",
            "config_vocabulary_fields": "config.json has a wrong vocabulary: .* field file; ",
            "vocabulary_gone": "was saved with the vocabulary vocabulary.model .*; put it back",
            "vocabulary_changed": "was saved with the vocabulary vocabulary.model .*; put it back",
            "t5x_no_config": "does not record its model; give its config",
            "hf_noise": "the header of .*model.safetensors is not JSON; ",
            "hf_pointer": "model.safetensors is a pointer of Git LFS.*git lfs pull",
            "hf_header_list": "model.safetensors .*; copy it again",
            "hf_header_entry": "model.safetensors .*shared.weight.*; copy it again",
            "hf_header_fields": "model.safetensors .*shared.weight.*; copy it again",
            "hf_config_kind": "config.json is of a 'bert' model; those that can be read",
            "hf_config_text": "config.json is not JSON .*; copy it again",
            "hf_config_fields": "hf_config_fields.*d_model.*; ",
            "hf_config_word": "config.json has a wrong d_model: expected int . null, got str; ",
            "hf_no_arrays": "no checkpoint in .*hf_no_arrays: .*; give the directory",
            "hf_padding": "T5Config.pad_id is 261 but the model has .* ids; give one of them",
            "hf_prefix": "begin with 'module.' .*DistributedDataParallel.*; save",
            "hf_encoder": "has no decoder .*but classifier; give",
            "hf_elsewhere": "index.json names the file '../hf/model.*'.* not in its folder; move",
            "hf_adapter": "shared.base_layer.weight is of an adapter .*; merge",
            "hf_float8": "shared.weight .* is F8_E4M3, which is not read; save",
            "hf_quantised": r"quantised \(quantization_config, fp8\), .*; save",
            "adapter": "no checkpoint in .*adapter: .*adapter of PEFT alone; merge",
        }.items()
    }
    | {
        f"arrays of {name}": case(
            "convert", f"YARD/{name}", "OUT/c", "--format=orbax", says=says, late=True
        )
        for name, says in {
            "config_other_size": "config_other_size.*; ",
            "manifest_noise": "cannot read .*manifest_noise.*; ",
            "manifest_empty": "cannot read .*manifest_empty.*; ",
            "arrays_cut": "arrays_cut.*; the copy may be incomplete",
            "arrays_gone": "arrays_gone.*; the copy may be incomplete",
            "t5x_noise": "checkpoint is not the msgpack file of a T5X checkpoint .*; copy",
            "t5x_empty": "checkpoint is not the msgpack file of a T5X checkpoint .*; copy",
            "t5x_array_gone": "t5x_array_gone.*; ",
            "t5x_chunk_gone": "t5x_chunk_gone.*; the copy may be incomplete",
            "t5x_chunk_noise": "t5x_chunk_noise.*; the copy may be incomplete",
            "t5x_zarray_noise": "t5x_zarray_noise.*; ",
            "hf_cut": "is cut short: .*; copy it again",
            "hf_header_shape": "model.safetensors .*shared.weight.*; copy it again",
            "hf_header_integers": "has no decoder .*but shared.weight; give",
        }.items()
    }
    | {
        "checkpoint at a URL": case(
            "decode",
            RUN,
            "--gin.CHECKPOINT_PATH='s3://a/b'",
            says="'s3://a/b' is a URL, .*; copy it",
        ),
        "checkpoint in no bucket": case(
            "decode",
            RUN,
            "--gin.CHECKPOINT_PATH='gs://'",
            says="'gs://' names no bucket; give gs://",
        ),
    }
)
# What the files of a checkpoint say of its texts.
ASKED = {
    f"asked by {name}": case("decode", RUN, f"--gin.CHECKPOINT_PATH='YARD/{name}'", says=says)
    for name, says in {
        "gen_beams": "generation_config.json has num_beams 4, .*no beam search; search with",
        "gen_text": "generation_config.json is not JSON .*; copy it again",
        "gen_samples": "has num_return_sequences 3, .*; leave out",
        "gen_sampled": "has do_sample True, and this run is greedy; draw with --temperature=0.7",
        "gen_encoder_ngrams": "has encoder_no_repeat_ngram_size 3, .*; leave out",
        "gen_encoder_penalty": "has encoder_repetition_penalty 1.2, .*; leave out",
        "gen_bias": "has sequence_bias .*; leave out",
        "gen_decay": "has exponential_decay_length_penalty .*; leave out",
        "gen_strings": "has stop_strings .*; leave out",
        "gen_seconds": "has max_time 1.5, .*; leave out",
        "gen_watermark": "has watermarking_config .*; leave out",
        "gen_decoder_ids": "has forced_decoder_ids .*; leave out",
        "gen_misspelt": "has surpress_tokens .*no setting that is known here; leave out",
        "gen_min_length": "has min_length 30, and outputs hold 8 tokens; raise --max_length",
        "gen_kind": "no_repeat_ngram_size is '3', which is not an integer.*; correct it",
        "gen_beyond": "names token 300 but the vocabulary has 261; .*correct it",
        "gen_both": "token 5 is in forced_prefix_ids and in suppress_tokens; ",
        "gen_end": "eos_token_id in generation_config.json is 300, and the model has 261 ids; ",
        "gen_end_kind": "has eos_token_id '</s>'; give a token id",
        "gen_no_end": "has no eos_token_id, and transformers ends no text without; add it",
        "gen_in_config": "config.json has num_beams 4, .*; search with .*, or leave out",
        "gen_two_answers": "contradicts itself: no_repeat_ngram_size is 2 in .*; correct",
    }.items()
} | {
    f"asked by {name}": case("decode", f"--target=YARD/{name}", "--text=a", says=says)
    for name, says in {
        "tok_end": "eos_token '<end>', and that of the vocabulary is '</s>'; use a tokenizer",
        "tok_lower": "tokenizer_config.json has do_lower_case True, .*; set it to False",
        "tok_twice": "contradicts itself: the added token .* has the ids 2049 and 2048 .*; correct",
        "tok_beyond": "the added token '{' is 3000, and the model has 2048 ids; correct",
        "tok_other_ids": "spiece.model: its ids of padding, .* are none, 2 and 0, .*; use",
    }.items()
}
VOCABULARIES = {
    f"vocabulary {name}": case(
        "decode", *PAIR[:2], f"--vocabulary=YARD/{name}", "--text=a", says=says
    )
    for name, says in {
        "none.model": "vocabulary .*none.model is not a file; give",
        "folder": "vocabulary .*folder is not a file; give",
        "noise.model": "vocabulary .*noise.model is not a SentencePiece model.*; give",
        "other_ids.model": "other_ids.model: its ids of padding, .* are none, 2 and 0, .*; use",
        "empty.model": "vocabulary .*empty.model is not a SentencePiece model.*; give",
        "test.tsv": "vocabulary .*test.tsv is not a SentencePiece model.*; give",
    }.items()
} | {
    "no vocabulary": case(
        "decode", *PAIR[:2], "--text=a", says="no vocabulary was saved with .*; name one"
    ),
    "another vocabulary than was saved": case(
        "decode",
        "--target=YARD/pieces",
        "--vocabulary=bytes",
        "--text=a",
        says="saved with another vocabulary.*; ",
    ),
    "another tokenizer for the draft": case(
        "decode",
        RUN,
        "--gin.DRAFT_VOCABULARY=@other/tasks.Bytes()",
        "--gin.other/tasks.Bytes.extra_ids=3",
        says=r"the draft's vocabulary, Bytes\(extra_ids=3\), is not the target's.*; ",
    ),
}

CASES = {**GIN, **TSV, **PAIRS, **TEXTS, **CHECKPOINTS, **ASKED, **VOCABULARIES}
