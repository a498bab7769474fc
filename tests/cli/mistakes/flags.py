"""Flags that are unknown or missing, or have values that cannot work."""

from mistakes.cases import PAIR, RUN, SAMPLED, case

SUMMARY = "YARD/good.summary.json"
PASSES = "--passes=YARD/passes.jsonl"
WORDS = {
    "a limit of none": case("decode", RUN, "--limit=0", says="limit is 0; give"),
    "unknown command": case("decod", says="'decod'.*; "),
    "unknown flag": case("decode", RUN, "--gin_flie=x", says="--gin_flie.*; "),
    "a word that belongs to nothing": case("decode", RUN, "hello", says="hello.*; "),
    "a limit that is no number": case("decode", RUN, "--limit=x", says="--limit.*'x'.*; "),
    "a limit below none": case(
        "eval", RUN, "--output_dir=OUT/e", "--limit=-3", says="limit is -3; "
    ),
    "a seed that is no number": case("decode", RUN, "--seed=x", says="--seed.*'x'.*; "),
    "a negative seed": case("decode", RUN, "--seed=-1", says="seed is -1; give"),
    "a seed of 70 bits": case(
        "decode", RUN, SAMPLED, f"--seed={2**70}", says=f"seed is {2**70}; give an integer from 0"
    ),
    "no samples": case("decode", RUN, SAMPLED, "--num_samples=0", says="num_samples is 0; give"),
    "samples that are no number": case(
        "decode", RUN, "--num_samples=x", says="num_samples.*'x'.*; "
    ),
    "no such colour": case("decode", RUN, "--color=blue", says="--color.*'blue'.*; "),
    "a flag without its value": case("decode", "--gin_file", says="--gin_file.*; "),
    "several paths with shared noise": case(
        "decode",
        *PAIR,
        "--text=a",
        "--drafter=multi_path",
        "--verifier=coupled",
        "--temperature=1",
        says="MultiPath drafts 4 paths, but Coupled.* takes one; give Block",
    ),
    "several paths of varying length": case(
        "decode",
        *PAIR,
        "--text=a",
        "--drafter=multi_path",
        "--schedule=heuristic",
        says="MultiPath drafts 4 paths, but lengths of Heuristic.* vary; give Fixed",
    ),
    "no paths": case(
        "decode",
        *PAIR,
        "--text=a",
        "--drafter=multi_path",
        "--gin.NUM_PATHS=0",
        says="MultiPath.paths is 0; give",
    ),
    "several paths in recorded texts": case(
        "acceptance",
        *PAIR,
        "--text=a",
        "--drafter=multi_path",
        says="DRAFTER drafts 4 paths, .*; record with",
    ),
    "several paths that are explained": case(
        "decode",
        *PAIR,
        "--text=a",
        "--drafter=multi_path",
        "--explain",
        "--output_file=OUT/x.jsonl",
        says="MultiPath drafts 4 paths, .*; explain with",
    ),
    "two kinds of previous outputs": case(
        "decode",
        RUN,
        "--live",
        "--previous=OUT/old.txt",
        says="--previous and --live both.*; leave",
    ),
    "previous outputs for another drafter": case(
        "decode",
        RUN,
        "--gamma=2",
        "--live",
        "--drafter=input_copy",
        says="InputCopy.* drafts from no .*; leave",
    ),
    "previous outputs that are missing": case(
        "decode", RUN, "--drafter=previous_output", says="previous outputs, which are missing; give"
    ),
    "previous outputs of a command that has none": case(
        "verify", RUN, "--drafter=previous_output", says="previous outputs, which are missing; give"
    ),
    "previous outputs in no file": case(
        "decode",
        RUN,
        "--gamma=2",
        "--previous=OUT/none.txt",
        says="--previous .*none.txt cannot be read: .*; ",
    ),
    "previous outputs without ids": case(
        "decode",
        RUN,
        "--gamma=2",
        "--previous=YARD/passes.jsonl",
        says="line 1 .*; give the --output_file",
    ),
    "several live texts": case(
        "decode",
        RUN,
        "--gamma=2",
        "--live",
        "--batch_size=2",
        says="one text at a time and --batch_size is 2;",
    ),
    "a prefix that is too long": case(
        "decode", RUN, "--decoder_prefix=far too long", says="prefix has 12 tokens but .*; give a"
    ),
    "a prefix that is longer than --max_length": case(
        "decode",
        RUN,
        "--decoder_prefix=abc",
        "--max_length=2",
        "--gin.GAMMA=1",
        says="'abc': the prefix has 3 tokens but outputs hold 2; give a shorter prefix, or raise",
    ),
    "a prefix as long as --max_length": case(
        "decode",
        RUN,
        "--decoder_prefix=abc",
        "--max_length=3",
        says="the prefix has 3 tokens, which leaves no room in outputs of 3; give a shorter",
    ),
    "a prefix that fills what is evaluated": case(
        "eval",
        RUN,
        "--gin.DECODER_PREFIX='abc'",
        "--max_length=3",
        "--output_dir=OUT/eval",
        says="the prefix has 3 tokens, which leaves no room",
    ),
    "compare without a drafter": case(
        "decode", RUN, "--gin.DRAFTER=None", "--compare", says="compare is set, but .*; "
    ),
    "compare distributions": case(
        "decode", RUN, SAMPLED, "--compare", says=r"compare is set, but Block.*; "
    ),
    "lossy and not said so": case(
        "decode",
        RUN,
        "--gin_file=verifiers/top_beta.gin",
        says="TopBeta.*does not keep the target's distribution.*; give --gin.LOSSY=True",
    ),
    "a lenience of none": case(
        "decode",
        RUN,
        "--gin_file=verifiers/lenient.gin",
        "--gin.LENIENCE=0",
        says="Lenient.lenience is 0; give",
    ),
    "a beta that is no number": case(
        "decode",
        RUN,
        "--gin_file=verifiers/top_beta.gin",
        "--gin.BETA='x'",
        says="TopBeta.beta is 'x'; give",
    ),
    "a cascade without such a rule": case(
        "decode",
        RUN,
        "--gin_file=verifiers/speculative_cascade.gin",
        "--gin.CASCADE_RULE='coin'",
        says="SpeculativeCascade.deferral is 'coin'; give one of",
    ),
    "draft without target": case(
        "decode", "--draft=YARD/draft", says="--draft .* needs --target.*; "
    ),
    "vocabulary without target": case(
        "decode", "--vocabulary=bytes", says="--vocabulary bytes needs --target.*; "
    ),
    "an empty target": case("decode", "--target=", "--text=a", says="checkpoint.*; "),
    "a target that is no checkpoint": case(
        "decode", "--target=YARD/folder", "--text=a", says="no checkpoint in .*; give"
    ),
    "a target that is not there": case(
        "decode", "--target=YARD/none", "--text=a", says="none does not exist; "
    ),
    "a draft that is not there": case(
        "decode", PAIR[0], "--draft=YARD/none", "--text=a", says="none does not exist; "
    ),
    "a data folder that is a file": case(
        "decode", RUN, "--tfds_data_dir=YARD/test.tsv", says="--tfds_data_dir.*test.tsv.*; "
    ),
}
COMMANDS = {
    "bench without repeats": case(
        "bench", RUN, "--repeats=0", says="--repeats is 0; give a positive"
    ),
    "eval to nowhere": case("eval", RUN, says="--output_dir.*; "),
    "an unknown metric": case(
        "eval", RUN, "--output_dir=OUT/e", "--metric=blue", says="--metric.*'blue'.*; "
    ),
    "no metric": case("eval", RUN, "--output_dir=OUT/e", says="no metrics; give one, --metric="),
    "eval of no task": case(
        "eval", RUN, "--output_dir=OUT/e", "--gin.TASK=None", says="no task.*; .*set TASK"
    ),
    "hosts that are none": case(
        "eval",
        RUN,
        "--output_dir=OUT/e",
        "--distributed=here",
        says="--distributed=here is no.*; ",
    ),
    "hosts without a mesh": case(
        "train",
        "--gin_file=YARD/train.gin",
        "--output_dir=OUT/t",
        "--distributed",
        says="one mesh, and there is none; give --gin.NUM_PARTITIONS=1",
    ),
    "hosts that make a table": case(
        "train",
        RUN,
        "--table=ngram",
        "--output_dir=OUT/t",
        "--distributed",
        says="--distributed is of a model, not of --table; ",
    ),
    "standard input of several hosts": case(
        "decode", RUN, "--text=-", "--distributed", says="of one host; give --input_file=FILE"
    ),
    "a rate of 1.5": case(
        "bench", RUN, "--synthetic_alpha=1.5", says="--synthetic_alpha: .*1.5.*; "
    ),
    "a rate that is no number": case(
        "bench", RUN, "--synthetic_alpha=nan", says="--synthetic_alpha: .*nan.*; "
    ),
    "a variant of another target": case(
        "bench",
        RUN,
        "--variant=GAMMA=1",
        "--variant=SEED=3",
        says="--variant=SEED=3 has SEED = 3, .*; ",
    ),
    "a variant that is no setting": case(
        "bench", RUN, "--variant=GAMMA", says="--variant=GAMMA: GAMMA has no value; "
    ),
    "a variant without its file": case(
        "bench", RUN, "--variant=none.gin", says="gin file none.gin not found .*; check"
    ),
    "two variants of one name": case(
        "bench",
        RUN,
        "--variant=GAMMA=1",
        "--variant=GAMMA=1",
        "--output_file=OUT/b.jsonl",
        says="--variant=GAMMA=1 is given twice; ",
    ),
    "a forecast of the same split": case(
        "bench", RUN, "--forecast_split=test", says="--forecast_split is 'test', .*; "
    ),
    "no tokens": case("acceptance", RUN, "--tokens=0", says="--tokens is 0; give a positive"),
    "a table and steps": case(
        "train",
        RUN,
        "--output_dir=OUT/t",
        "--table=ngram",
        "--steps=3",
        says="--steps is of a model",
    ),
    "tokens of no table": case(
        "train", RUN, "--output_dir=OUT/t", "--tokens=3", says="--tokens is 3 without --table; name"
    ),
    "a table of no tokens": case(
        "train",
        RUN,
        "--output_dir=OUT/t",
        "--table=store",
        "--tokens=0",
        says="--tokens is 0; give",
    ),
    "a table of no kind": case(
        "train", RUN, "--output_dir=OUT/t", "--table=tree", says="--table.*'tree'.*; "
    ),
    "n-grams without a table": case(
        "decode", RUN, "--drafter=ngram", says="DRAFT_TABLE_PATH is required; set it"
    ),
    "a table that is none": case(
        "decode",
        RUN,
        "--drafter=retrieval",
        "--gin.DRAFT_TABLE_PATH='YARD/target'",
        says="target is no table .*; make one with specdec train --table=store",
    ),
    "a table of another kind": case(
        "verify",
        RUN,
        "--drafter=ngram",
        "--gin.DRAFT_TABLE_PATH='YARD/store'",
        says="is a table of kind store and the run needs ngram; make",
    ),
    "a table of another vocabulary": case(
        "decode",
        RUN,
        "--drafter=retrieval",
        "--gin.DRAFT_TABLE_PATH='YARD/store'",
        says="store was made with another vocabulary than the run's; make",
    ),
    "n-grams of four": case(
        "decode",
        RUN,
        "--drafter=ngram",
        "--gin.NGRAM_ORDER=4",
        says="NGram.order is 4; give one of 1, 2",
    ),
    "a lookup of nothing": case(
        "decode",
        RUN,
        "--drafter=prompt_lookup",
        "--gin.LOOKUP_SHORTEST=9",
        says="PromptLookup.shortest is 9, more than longest, 4; give less",
    ),
    "a study that is none": case(
        "replicate", "leviathn", says="no study 'leviathn'; did you mean leviathan"
    ),
    "a study of other rows": case(
        "replicate", "demo", "--rows=ende_t2", says="--rows: no row is named ende_t2; give some"
    ),
    "a use of what is not needed": case(
        "replicate", "leviathan", "--use=xl=YARD", says="--use is 'xl=.*; give NAME=PATH"
    ),
    "a use without a path": case(
        "replicate", "leviathan", "--use=ende", says="--use is 'ende'; give NAME=PATH"
    ),
    "a synthetic study of nothing": case(
        "replicate",
        "leviathan",
        "--synthetic",
        "--dry_run",
        says="--synthetic .*; give --grown as well",
    ),
    "a study with a checkpoint that is not there": case(
        "replicate",
        "leviathan",
        "--use=small_ende=YARD/none",
        says="--use=small_ende: checkpoint .*none does not exist; .* holds",
    ),
    "a study with texts that are not there": case(
        "replicate",
        "leviathan",
        "--use=ende=YARD/none.tsv",
        says="none.tsv cannot be read: No such",
    ),
    "a study with a vocabulary that is not there": case(
        "replicate",
        "leviathan",
        "--use=vocabulary=YARD/none.model",
        says="--use=vocabulary: .*none.model does not exist; give T5's SentencePiece model",
    ),
    "a study that nothing stands in for": case(
        "replicate",
        "yan",
        "--grown=t5_1_1_base",
        says="--grown is t5_1_1_base, and no row of yan has a stand-in; leave --grown out",
    ),
    "a study of models that do not grow": case(
        "replicate",
        "leviathan",
        "--rows=ende_small_t0",
        "--grown=t5_1_1_huge",
        "--output_dir=OUT/study",
        says="row ende_small_t0: --grown is 't5_1_1_huge'; give a scope of .*t5_1_1_base",
    ),
    "a study with a setting that nothing reads": case(
        "replicate",
        "leviathan",
        "--rows=ende_small_t0",
        "--gin.DTYP=3",
        "--output_dir=OUT/study",
        says="row ende_small_t0: DTYP is read by nothing; did you mean DTYPE",
    ),
    "a study next to nothing": case(
        "replicate", "demo", "--compare=YARD/folder", says="has no page.json; give a folder of"
    ),
    "a study of no texts": case("replicate", "demo", "--limit=0", says="--limit is 0; give"),
    "a study on no chip": case(
        "replicate", "demo", "--topology=v9:2x2", says="'v9:2x2' .*; give a generation"
    ),
    "a study that is a run": case("replicate", "YARD/run.gin", says="no study .*run.gin'; give"),
    "a forecast of nothing": case("forecast", RUN, says="--passes; see specdec forecast"),
    "passes that are not there": case(
        "forecast", RUN, "--passes=YARD/none.jsonl", says="none.jsonl does not exist.*; make it"
    ),
    "passes without settings": case(
        "forecast", RUN, "--passes=YARD/old.jsonl", says="no old.jsonl.gin next to it; make passes"
    ),
    "passes without tokens": case(
        "forecast", RUN, "--passes=YARD/first.jsonl", says="is of version 1, .*; make it anew"
    ),
    "passes of another run": case(
        "forecast",
        RUN,
        PASSES,
        says="passes.jsonl is of .* = not set, and the run has .*; make passes",
    ),
    "a forecast without a drafter": case(
        "forecast", RUN, PASSES, "--gin.DRAFTER=None", says="no drafter; set DRAFTER"
    ),
    "drafts of no token": case(
        "forecast", RUN, PASSES, "--gammas=0", says="--gammas is '0'; give draft lengths"
    ),
    "drafts of fewer than a few": case(
        "forecast", RUN, PASSES, "--gammas=4-2", says="--gammas is '4-2'; give draft lengths"
    ),
    "a topology of no costs": case(
        "forecast", RUN, PASSES, "--topology=v4:2x2", says="v4:2x2 without --costs; give"
    ),
    "costs that are not there": case(
        "forecast", RUN, PASSES, "--costs=YARD/none", says="--costs .*none does not exist; give"
    ),
    "costs of nothing": case(
        "forecast",
        RUN,
        PASSES,
        "--costs=YARD/good.summary.json",
        says="good.summary.json, line 1, is not JSON|no timings of parts; give the lines",
    ),
    "a topology that is none": case("compile", RUN, "--topology=v4", says="topology 'v4' .*; give"),
    "a chip that is none": case("compile", RUN, "--topology=v9:2x2", says="'v9:2x2' .*; give"),
    "a topology of nothing": case(
        "compile", RUN, "--topology=v4:0x2x1", says="'v4:0x2x1' .*; give"
    ),
    "no topology": case("compile", RUN, says="--topology.*; "),
    "an alpha of 2": case(
        "compile", RUN, "--topology=v4:2x2x1", "--alpha=2", says="--alpha is 2.*; "
    ),
    "an alpha that is no number": case(
        "compile", RUN, "--topology=v4:2x2x1", "--alpha=nan", says="--alpha is nan; give"
    ),
    "compile without a drafter": case(
        "compile", RUN, "--topology=v4:2x2x1", "--gin.DRAFTER=None", says="no drafter; set DRAFTER"
    ),
    "convert nothing": case(
        "convert", "YARD/none", "OUT/c", "--format=t5x", says="none does not exist; "
    ),
    "convert to an unknown format": case(
        "convert", "YARD/target", "OUT/c", "--format=zip", says="--format.*'zip'.*; "
    ),
    "convert to an unknown dtype": case(
        "convert",
        "YARD/target",
        "OUT/c",
        "--format=t5x",
        "--dtype=int8",
        says="--dtype.*'int8'.*; ",
    ),
    "convert without an output": case(
        "convert", "YARD/target", "--format=t5x", says="output is missing; "
    ),
    "trim with two inputs": case(
        "trim", "YARD/target", "OUT/t", "--input=YARD/draft", says="both the input; give one"
    ),
    "eval of a text": case("eval", *PAIR, "--output_dir=OUT/e", "--text=a", says="--text=a: .*; "),
    "eval of inputs alone": case(
        "eval",
        *PAIR,
        "--output_dir=OUT/e",
        "--metric=bleu",
        "--input_file=YARD/inputs.txt",
        says="no references to compare outputs with; give --input_file",
    ),
    "score of inputs alone": case(
        "score",
        *PAIR,
        "--input_file=YARD/inputs.txt",
        says="no outputs to score; give --input_file",
        late=True,
    ),
    "score of a text": case("score", *PAIR, "--text=a", says="--text=a: .*; give --input_file"),
    "training on a text": case(
        "train", PAIR[1], "--output_dir=OUT/t", "--text=a", says="--text=a: .*; give --input_file"
    ),
    "training of nothing": case(
        "train", PAIR[0], "--output_dir=OUT/t", says="--target=.*; give --draft"
    ),
    "standard input for bench": case(
        "bench", *PAIR, "--text=-", says="standard input, which .*decode.*; give --input_file"
    ),
    "inputs that are not there": case(
        "bench", *PAIR, "--input_file=YARD/none", says="none cannot be read: .*; give"
    ),
    "inputs with a reference here and there": case(
        "bench", *PAIR, "--input_file=YARD/no_tab.tsv", says="line 2 has 0 TABs .*; give"
    ),
    "inputs in Latin-1": case(
        "bench", *PAIR, "--input_file=YARD/latin1.tsv", says="line 1 or near it.*; convert"
    ),
    "inputs that are too long": case(
        "bench",
        *PAIR,
        "--input_file=YARD/long.tsv",
        "--gin.TASK_FEATURE_LENGTHS={'inputs': 16, 'targets': 8}",
        "--gin.BUCKETS=()",
        says="text 1 is .* tokens long .*; give --gin.TASK_FEATURE_LENGTHS=",
    ),
    "texts from two places": case(
        "bench", *PAIR, "--text=a", "--input_file=YARD/inputs.txt", says="both give texts; leave"
    ),
    "a forecast of a split of a file": case(
        "bench",
        *PAIR,
        "--input_file=YARD/inputs.txt",
        "--forecast_split=validation",
        says="--forecast_split is 'validation', .*; leave it out",
    ),
    "beams": case("forecast", RUN, "--num_beams=4", says="no flag --num_beams; beams are searched"),
    "beams of acceptance": case(
        "acceptance", RUN, "--gin.NUM_BEAMS=4", says="NUM_BEAMS is 4, and this command does no beam"
    ),
    "refilled beams": case(
        "eval",
        RUN,
        "--num_beams=2",
        "--refill",
        "--output_dir=OUT/new",
        says="REFILL is for decoding and NUM_BEAMS is 2; leave out one of them",
    ),
    "refilled rows on a mesh": case(
        "decode",
        RUN,
        "--refill",
        "--batch_size=8",
        "--gin.NUM_PARTITIONS=1",
        says="REFILL is for one device and NUM_PARTITIONS makes a mesh of 8; leave out one",
    ),
    "refilled rows, one text at a time": case(
        "acceptance", RUN, "--gin.REFILL=True", says="REFILL needs several rows and BATCH_SIZE is 1"
    ),
    "more texts than beams": case(
        "decode", RUN, "--num_beams=2", "--num_return=3", says="num_return is 3 but num_beams 2; "
    ),
    "beams that are drawn": case(
        "decode",
        RUN,
        "--num_beams=2",
        "--temperature=1",
        says="takes the likeliest texts, and sampling is Sampling.*; give Greedy",
    ),
    "beams of a table": case(
        "decode",
        RUN,
        "--num_beams=2",
        "--drafter=prompt_lookup",
        says="beams are drafted by a model of their own, and the drafter is PromptLookup; ",
    ),
    "explained beams": case(
        "decode",
        RUN,
        "--num_beams=2",
        "--explain",
        "--output_file=OUT/x.jsonl",
        says="--explain tells of drafted tokens, not of beams; leave",
    ),
    "samples of bench": case(
        "bench", RUN, "--num_samples=4", says="no flag --num_samples; use --gin.NUM_SAMPLES=4"
    ),
    "convert onto itself": case(
        "convert", "YARD/target", "YARD/target", "--format=t5x", says="target exists; give a new"
    ),
    "convert to a URL": case(
        "convert", "YARD/target", "gs://a/b", "--format=t5x", says="'gs://a/b' is a URL, .*; copy"
    ),
    "convert below a file": case(
        "convert", "YARD/target", "YARD/test.tsv/c", "--format=t5x", says="test.tsv.*; "
    ),
    "convert with no such config": case(
        "convert",
        "YARD/t5x",
        "OUT/c",
        "--format=orbax",
        "--config=YARD/none.json",
        says="config .*none.json is not a file; give",
    ),
    "convert with another config": case(
        "convert",
        "YARD/t5x",
        "OUT/c",
        "--format=orbax",
        "--config=YARD/list.summary.json",
        says="list.summary.json is no such JSON object.*; ",
    ),
    "convert with no such vocabulary": case(
        "convert",
        "YARD/target",
        "OUT/c",
        "--format=orbax",
        "--vocabulary=YARD/none.model",
        says="vocabulary .*none.model is not a file; give",
    ),
    "convert with noise for a vocabulary": case(
        "convert",
        "YARD/target",
        "OUT/c",
        "--format=orbax",
        "--vocabulary=YARD/noise.model",
        says="noise.model is not a SentencePiece model.*; give",
    ),
    "convert noise": case(
        "convert", "YARD/hf_noise", "OUT/c", "--format=orbax", says="the header of .* is not JSON; "
    ),
    "convert half an array": case(
        "convert",
        "YARD/arrays_cut",
        "OUT/c",
        "--format=t5x",
        late=True,
        says="; the copy may be incomplete",
    ),
    "grow to no preset": case(
        "grow",
        "--input=YARD/target",
        "--preset=huge",
        "--output=OUT/g",
        says="--preset is 'huge'; give a scope of",
    ),
    "grow what is not there": case(
        "grow",
        "--input=YARD/none",
        "--preset=t5_1_1_small",
        "--output=OUT/g",
        says="none does not exist; ",
    ),
    "grow onto something": case(
        "grow",
        "--input=YARD/target",
        "--preset=t5_1_1_small",
        "--output=YARD/draft",
        says="draft exists; give a new",
    ),
    "grow from a seed of 70 bits": case(
        "grow",
        "--input=YARD/target",
        "--preset=t5_1_1_small",
        "--output=OUT/g",
        f"--seed={2**70}",
        says=f"seed is {2**70}; give",
    ),
    "grow from a negative seed": case(
        "grow",
        "--input=YARD/target",
        "--preset=t5_1_1_small",
        "--output=OUT/g",
        "--seed=-1",
        says="seed is -1; give",
    ),
    "trim nothing": case(
        "trim",
        "--input=YARD/target",
        "--output=OUT/p",
        says="nothing to trim; give --decoder_layers",
    ),
    "trim to layers that are not there": case(
        "trim",
        "--input=YARD/target",
        "--output=OUT/p",
        "--decoder_layers=first:9",
        says="--decoder_layers is 'first:9' and the model has 1 layers; give",
    ),
    "trim an encoder that is to be shared": case(
        "trim",
        "--input=YARD/target",
        "--output=OUT/p",
        "--encoder_layers=0",
        "--shared_encoder",
        says="shared_encoder says that there is no encoder; leave",
    ),
    "trim a head by nothing": case(
        "trim",
        "--input=YARD/target",
        "--output=OUT/p",
        "--head_size=9",
        says="--head_size is 9 without --predictions; give both",
    ),
    "trim a head by a folder without predictions": case(
        "trim",
        "--input=YARD/target",
        "--output=OUT/p",
        "--head_size=9",
        "--predictions=YARD/folder",
        says="folder has no predictions; give the --output_dir of",
    ),
    "trim what is not there": case(
        "trim",
        "--input=YARD/none",
        "--output=OUT/p",
        "--shared_encoder",
        says="none does not exist; ",
    ),
    "trim onto something": case(
        "trim",
        "--input=YARD/target",
        "--output=YARD/draft",
        "--shared_encoder",
        says="draft exists; give a new",
    ),
    "train to nowhere": case("train", "--gin_file=YARD/train.gin", says="--output_dir.*; "),
    "train by a file that decodes": case(
        "train", RUN, "--output_dir=OUT/t", says="describe no TrainRun; include"
    ),
    "train no steps": case(
        "train",
        "--gin_file=YARD/train.gin",
        "--output_dir=OUT/t",
        "--steps=0",
        says="TrainRun.steps is 0; give",
    ),
    "train from a seed of 70 bits": case(
        "train",
        "--gin_file=YARD/train.gin",
        "--output_dir=OUT/t",
        f"--seed={2**70}",
        says=f"TrainRun.seed is {2**70}; give an integer from 0",
    ),
    "report of nothing": case("report", says="nothing to report on; give a FILE"),
    "report of what is not there": case(
        "report", "YARD/none.summary.json", says="none.summary.json cannot be read: .*; "
    ),
    "report of a folder": case("report", "YARD/folder", says="folder cannot be read: .*; "),
    "report of noise": case("report", "YARD/noise.summary.json", says="is no summary; give"),
    "report of a list": case("report", "YARD/list.summary.json", says="is no summary; give"),
    "report of half a benchmark": case(
        "report", "YARD/speedup.summary.json", says="is no summary; "
    ),
    "report of half an acceptance": case(
        "report", "YARD/alphas.summary.json", says="is no summary; "
    ),
    "report of one run twice": case(
        "report", SUMMARY, SUMMARY, says="second summary .*; .*rename one"
    ),
    "report beside no row": case(
        "report", SUMMARY, "--paper=x.gin", says="x.gin has no published figures; give a row"
    ),
}

CASES = {**WORDS, **COMMANDS}
