"""Settings with values that cannot work."""

from mistakes.cases import PAIR, RUN, SAMPLED, Cases, case


def _rows(*files: str, rows: list[tuple[str, str]], command: str = "decode") -> Cases:
    """Rows of one setting each: (NAME=value, what is said)."""
    return {
        setting if command == "decode" else f"{command} {setting}": case(
            command, *files, f"--gin.{setting}", says=says
        )
        for setting, says in rows
    }


DRAFTS = _rows(
    RUN,
    rows=[
        ("GAMMA=(3", r"--gin.GAMMA=\(3: \(3 is not a value"),
        ("GAMMA=0", "Fixed.gamma is 0; give a positive integer"),
        ("GAMMA=-1", "Fixed.gamma is -1; give a positive integer"),
        ("GAMMA=True", "Fixed.gamma is True; give a positive integer"),
        ("GAMMA=2.5", "Fixed.gamma is 2.5; give a positive integer"),
        ("GAMMA='4'", "Fixed.gamma is '4'; give a positive integer"),
        ("GAMMA=None", "Fixed.gamma is None; give a positive integer"),
        ("GAMMA=[2, 3]", r"Fixed.gamma is \[2, 3\]; give a positive integer"),
        ("GAMMA=%NONE", "%NONE is read but never set; set it in a gin file or with --gin.NONE="),
        ("GAMA=3", "GAMA is read by nothing; did you mean GAMMA?"),
        ("SCHEDULE=None", "its schedule is None; give one"),
        ("SCHEDULE=4", "Plan.schedule is 4; give a schedule, such as"),
        ("VERIFIER=None", "its verifier is None; give one"),
        ("VERIFIER='greedy'", "Plan.verifier is 'greedy'; give a verifier, such as"),
        ("VERIFIER=@Copuled()", "No configurable .*'@Copuled\\(\\)'; check the name"),
        ("DRAFTER='draft'", "Plan.drafter is 'draft'; give a drafter, such as"),
        ("DRAFT_MODEL=None", "DRAFT_MODEL is required; set it"),
        ("DRAFT_MODEL=7", "Autoregressive.model is 7; give a model"),
        ("DRAFT_SAMPLING='hot'", "Autoregressive.sampling is 'hot'; give a rule"),
    ],
)
SAMPLING = _rows(
    RUN,
    SAMPLED,
    rows=[
        ("TEMPERATURE='hot'", "Sampling.temperature is 'hot'; give a positive number"),
        ("TEMPERATURE=None", "Sampling.temperature is None; give a positive number"),
        ("TEMPERATURE=nan", "--gin.TEMPERATURE=nan: nan is not a value"),
        ("TEMPERATURE=1e999", "Sampling.temperature is inf; give a positive number"),
        ("TEMPERATURE=True", "Sampling.temperature is True; give a positive number"),
        ("TEMPERATURE=0.0", r"Sampling.temperature is 0.0; give .* or use Greedy\(\)"),
        ("TEMPERATURE=-1", "Sampling.temperature is -1; give a positive number"),
        ("TEMPERATURE=(1,)", r"Sampling.temperature is \(1,\); give a positive number"),
        ("TOP_K=0", "Sampling.top_k is 0; give a positive integer or None"),
        ("TOP_K='x'", "Sampling.top_k is 'x'; give a positive integer or None"),
        ("TOP_K=2.5", "Sampling.top_k is 2.5; give a positive integer or None"),
        ("TOP_K=True", "Sampling.top_k is True; give a positive integer or None"),
        ("TOP_K=1e999", "Sampling.top_k is inf; give a positive integer or None"),
        ("TOP_P='x'", r"Sampling.top_p is 'x'; give a number in \(0, 1\] or None"),
        ("TOP_P=0", "Sampling.top_p is 0; give a number in"),
        ("TOP_P=1.5", "Sampling.top_p is 1.5; give a number in"),
        ("TOP_P=True", "Sampling.top_p is True; give a number in"),
        ("SAMPLING=None", "sampling is None; give a rule, as Greedy"),
        ("SAMPLING=0.7", "sampling is 0.7; give a rule, as Greedy"),
    ],
)
BATCHES = _rows(
    RUN,
    rows=[
        ("BATCH_SIZE=0", "batch_size is 0; give a positive integer"),
        ("BATCH_SIZE='8'", "batch_size is '8'; give a positive integer"),
        ("BATCH_SIZE=-1", "batch_size is -1; give a positive integer"),
        ("BATCH_SIZE=1.5", "batch_size is 1.5; give a positive integer"),
        ("BATCH_SIZE=True", "batch_size is True; give a positive integer"),
        ("BATCH_SIZE=None", "batch_size is None; give a positive integer"),
        ("BUCKETS=16", "buckets is 16; give ascending lengths"),
        ("BUCKETS=(8, 4)", r"buckets is \(8, 4\); give ascending lengths"),
        ("BUCKETS=(0,)", r"buckets is \(0,\); give ascending lengths"),
        ("BUCKETS=(16,)", r"buckets is \(16,\); give ascending lengths below 16"),
        ("BUCKETS='48'", "buckets is '48'; give ascending lengths"),
        ("BUCKETS=(4.5,)", r"buckets is \(4.5,\); give ascending lengths"),
        ("BUCKETS=(True,)", r"buckets is \(True,\); give ascending lengths"),
        ("BUCKETS=None", "buckets is None; give ascending lengths"),
        ("LIMIT=0", "limit is 0; give a positive integer"),
        ("LIMIT='x'", "limit is 'x'; give a positive integer"),
        ("LIMIT=True", "limit is True; give a positive integer"),
        ("NUM_SAMPLES=0", "num_samples is 0; give a positive integer"),
        ("NUM_SAMPLES='2'", "num_samples is '2'; give a positive integer"),
        ("NUM_SAMPLES=True", "num_samples is True; give a positive integer"),
        ("NUM_SAMPLES=2", "num_samples is 2 but greedy outputs are all the same; sample"),
        ("SEED=-1", r"Data.seed is -1; give an integer from 0 to 4294967295"),
        ("SEED=1180591620717411303424", "Data.seed is 1180591620717411303424; give an integer"),
        ("SEED=4294967296", "Data.seed is 4294967296; give an integer from 0 to 4294967295"),
        ("SEED='x'", "Data.seed is 'x'; give an integer"),
        ("SEED=1.5", "Data.seed is 1.5; give an integer"),
        ("SEED=True", "Data.seed is True; give an integer"),
        ("SEED=None", "Data.seed is None; give an integer"),
    ],
)
TEXTS = _rows(
    RUN,
    rows=[
        ("TASK_FEATURE_LENGTHS=64", "lengths is 64; give a Mapping"),
        ("TASK_FEATURE_LENGTHS={}", "no sequence length for '.*' in {}; give one"),
        ("TASK_FEATURE_LENGTHS={'inputs': 8}", "no sequence length for 'targets' .*; give one"),
        ("TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 0}", "length for 'targets' .*; give one"),
        ("TASK_FEATURE_LENGTHS={'inputs': '8', 'targets': 8}", "length for 'inputs' .*; give one"),
        ("TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': True}", "for 'targets' .*; give one"),
        (
            "TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 8, 'target': 9}",
            "'target' in .*'target': 9.*; leave it out, the features are inputs and targets",
        ),
        ("DECODER_PREFIX=3", "Data.decoder_prefix is 3; give"),
        ("DECODER_PREFIX='far too long'", "'far too long' has 12 tokens .*; raise 'targets'"),
        ("MIN_LENGTH=-1", "min_length is -1 .*; give a number of tokens"),
        ("MIN_LENGTH=8", "min_length is 8 but targets hold 8; give a number of tokens"),
        ("MIN_LENGTH='x'", "min_length is 'x' .*; give a number of tokens"),
        ("MIN_LENGTH=True", "min_length is True .*; give a number of tokens"),
        ("SPLIT=test", "--gin.SPLIT=test: test is not a value; .*\"'test'\""),
        ("SPLIT=3", "Data.split is 3; give"),
        ("SPLIT='train'", "no split 'train'; it has test"),
        ("SPLIT=", "--gin.SPLIT=: nothing is not a value; strings need quotes"),
        ("SPLIT", "--gin.SPLIT: nothing is not a value; strings need quotes"),
        ("TASK='nope'", "no task is named 'nope'; registered:"),
        ("TASK=3", "Data.task is 3; give a task, or the name of a registered one"),
        ("TASK=None", "there is no task and no text; set TASK"),
        ("TASK_FILES='x.tsv'", "files of task 'yard' is 'x.tsv'; give split -> path"),
        ("TASK_FILES={}", "files of task 'yard' is {}; give split -> path"),
        ("TASK_FILES={'test': 3}", "files of task 'yard' .*3.*; give split -> path"),
        ("TASK_NAME=3", "the task's name is 3; give"),
        ("TASK_PREFIX=3", "prefix of task 'yard' is 3; give"),
        ("VOCABULARY='spiece.model'", "vocabulary .*'spiece.model'; give SentencePiece"),
        ("VOCABULARY=3", "vocabulary .* 3; give SentencePiece"),
        ("tasks.Bytes.extra_ids=-1", "extra_ids is -1; give"),
        ("tasks.Bytes.extra_ids='x'", "extra_ids is 'x'; give"),
    ],
)
MODELS = _rows(
    RUN,
    rows=[
        ("CHECKPOINT_PATH=/a/b", r"/a/b is not a value; .*--gin.CHECKPOINT_PATH=\"'/a/b'\""),
        ("CHECKPOINT_PATH=3", "checkpoint is 3; give the path of one"),
        ("CHECKPOINT_PATH=''", "checkpoint is ''; give the path of one"),
        ("CHECKPOINT_PATH=None", "target: checkpoint is None; give the path of one"),
        ("DRAFT_CHECKPOINT_PATH=None", "draft: checkpoint is None; give the path of one"),
        ("DRAFT_CHECKPOINT_PATHS={}", "no checkpoint for draft; give one for each"),
        ("DRAFT_CHECKPOINT_PATHS='x'", "draft_checkpoint_paths is 'x'; give role -> path"),
        ("DRAFT_CHECKPOINT_PATHS={'drft': 'x'}", "no checkpoint for draft; give one for each"),
        ("MODEL=None", "Plan.target is None; give a model, such as"),
        ("MODEL='t5'", "Plan.target is 't5'; give a model, such as"),
        ("DTYPE='float16'", "dtype is 'float16'; use 'float32' or 'bfloat16'"),
        ("DTYPE='float99'", "dtype is 'float99'; use 'float32' or 'bfloat16'"),
        ("DTYPE=3", "dtype is 3; use 'float32' or 'bfloat16'"),
        ("NUM_PARTITIONS=0", "num_partitions is 0; give a positive integer or None"),
        ("NUM_PARTITIONS='2'", "num_partitions is '2'; give a positive integer or None"),
        ("NUM_PARTITIONS=True", "num_partitions is True; give a positive integer or None"),
        ("INT8='target'", r"int8 is 'target'; give roles, of target, draft, as in \('target',\)"),
        ("INT8=('tagret',)", r"int8 is \('tagret',\); give roles, of target, draft"),
        ("INT8=True", "int8 is True; give roles, of target, draft"),
        ("NUM_PARTITIONS=3", "num_partitions is 3, which does not divide 8 devices; give 1, 2"),
        ("NUM_PARTITIONS=16", "num_partitions is 16 but there are 8 devices; give 1, 2"),
        ("NUM_PARTITIONS=2", "batch.*; give"),
        ("LOGICAL_AXIS_RULES=5", "logical_axis_rules is 5; give pairs"),
        ("LOGICAL_AXIS_RULES=(('heads', 'x'),)", "divides 'heads' over 'x'; the mesh has"),
    ],
)
COMMANDS = {
    **_rows(
        RUN,
        command="verify",
        rows=[
            ("DRAFTER=None", "the run has no drafter; set DRAFTER"),
            ("DECODER_PREFIX='a'", "about whole outputs; leave decoder_prefix empty"),
        ],
    ),
    **_rows(
        RUN,
        command="bench",
        rows=[
            ("DRAFTER=None", "the run has no drafter; set DRAFTER"),
            ("DECODER_PREFIX='a'", "decoder_prefix is 'a'; leave it out"),
        ],
    ),
    **_rows(
        RUN,
        command="acceptance",
        rows=[
            ("DRAFTER=None", "the run has no drafter; set DRAFTER"),
            ("MIN_LENGTH=2", "min_length is 2; leave it out"),
        ],
    ),
    "text without a task": case(
        "decode", *PAIR, "--gin.TASK_FEATURE_LENGTHS={'input': 8}", "--text=a", says="; give one"
    ),
    "text with a length too many": case(
        "decode",
        *PAIR,
        "--gin.TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 8, 'output': 8}",
        "--gin.BUCKETS=()",
        "--text=a",
        says="'output' in .*; leave it out, the features are inputs and targets",
    ),
}
TRAIN = "YARD/train.gin"
TRAINING = _rows(
    "--gin_file=YARD/train.gin",
    "--output_dir=OUT/train",
    command="train",
    rows=[
        ("STEPS=0", "TrainRun.steps is 0; give a positive integer"),
        ("STEPS='9'", "TrainRun.steps is '9'; give a positive integer"),
        ("STEPS=True", "TrainRun.steps is True; give a positive integer"),
        ("BATCH_SIZE=0", "TrainRun.batch_size is 0; give a positive integer"),
        ("BUCKETS=(8,)", r"TrainRun.buckets is \(8,\); give a positive integer"),
        ("SEED=-1", "TrainRun.seed is -1; give an integer from 0"),
        ("SEED=4294967296", "TrainRun.seed is 4294967296; give an integer from 0 to"),
        ("LABEL_SMOOTHING=1.5", "TeacherForced.label_smoothing is 1.5; give 0 <= s < 1"),
        ("LABEL_SMOOTHING='x'", "TeacherForced.label_smoothing is 'x'; give 0 <= s < 1"),
        ("LEARNING_RATE=0", "LearningRate.peak is 0; give a positive number"),
        ("LEARNING_RATE='x'", "LearningRate.peak is 'x'; give a positive number"),
        ("WARMUP=0", "LearningRate.warmup is 0; give a positive integer"),
        ("WARMUP=1.5", "LearningRate.warmup is 1.5; give a positive integer"),
        ("HOLD=-1", "LearningRate.hold is -1; give an integer from 0 on"),
        ("DECAY='cosine'", "LearningRate.decay is 'cosine'; known: constant"),
        ("DECAY='linear'", "LearningRate.end is None with decay 'linear'; "),
        ("DECAY_END=5", "LearningRate.end is 5 with decay 'constant'; "),
        ("CLIP_NORM='x'", "Adafactor.clip_norm is 'x'; give a positive number or None"),
        ("CLIP_NORM=-1.0", "Adafactor.clip_norm is -1.0; give a positive number or None"),
        ("TASK_FEATURE_LENGTHS=8", "TrainRun.lengths is 8; give"),
        ("TASK_FEATURE_LENGTHS={'inputs': 8}", "TrainRun.lengths has 'targets' None; give"),
        ("TASK_FEATURE_LENGTHS={'inputs': 8, 'targets': 8, 'x': 1}", "'x' in .*; leave it out"),
        ("EVALUATION_SPLIT='none'", "no split 'none'; it has test"),
        ("EVALUATION_SPLIT=3", "no split 3; it has test"),
        ("SPLIT='none'", "no split 'none'; it has test"),
        ("MODEL=None", "TrainRun.model is None; give a model"),
        ("MODEL=3", "TrainRun.model is 3; give a model"),
        ("TASK=None", "TrainRun.task is None; give a task, or the name"),
        ("t5.T5Config.emb_dim=0", "T5Config.emb_dim is 0; give a positive integer"),
        ("t5.T5Config.vocab_size=9", "the model has 9 output ids but the vocabulary 259; "),
        ("t5.T5Config.dtype='x'", "T5Config.dtype is 'x'; use 'float32'"),
        ("t5.T5Config.num_heads=2.0", "T5Config.num_heads is 2.0; give a positive integer"),
        ("t5.T5Config.layer_norm_epsilon=-1", "layer_norm_epsilon is -1; give a positive number"),
    ],
)

CASES = {**DRAFTS, **SAMPLING, **BATCHES, **TEXTS, **MODELS, **COMMANDS, **TRAINING}
