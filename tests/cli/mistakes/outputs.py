"""Outputs that cannot be written, or would destroy something."""

from mistakes.cases import PAIR, RUN, case

PAIRS = "--pairs=YARD/test.tsv"
TRAIN = "--gin_file=YARD/train.gin"
SUMMARY = "YARD/good.summary.json"
OVER = {
    "decode over a file": case(
        "decode", RUN, "--output_file=YARD/old.jsonl", says="old.jsonl exists; .*another file"
    ),
    "decode over its data": case(
        "decode", RUN, "--output_file=YARD/test.tsv", says="test.tsv exists; .*another file"
    ),
    "decode over its settings": case(
        "decode", RUN, "--output_file=YARD/run", says="run.gin exists; .*another file"
    ),
    "score over a file": case(
        "score",
        *PAIR,
        PAIRS,
        "--output_file=YARD/old.jsonl",
        says="old.jsonl exists; .*another file",
    ),
    "score over its pairs": case(
        "score", *PAIR, PAIRS, "--output_file=YARD/test.tsv", says="test.tsv exists; .*another file"
    ),
    "bench over its settings": case(
        "bench", RUN, "--output_file=YARD/run", says="run.gin.*; give another"
    ),
    "acceptance over another file": case(
        "acceptance",
        RUN,
        "--output_file=YARD/old.jsonl",
        says="old.jsonl.gin next to it; give another",
    ),
    "acceptance over its settings": case(
        "acceptance", RUN, "--output_file=YARD/run", says="run.gin.*; give another"
    ),
    "forecast over its passes": case(
        "forecast",
        RUN,
        "--passes=YARD/passes.jsonl",
        "--output_file=YARD/passes.jsonl",
        says="passes.jsonl is what the command reads; give another",
    ),
    "verify over its settings": case(
        "verify", RUN, "--output_file=YARD/run.gin", says="run.gin.*; give another"
    ),
    "compile over its settings": case(
        "compile", RUN, "--topology=v4:2x2x1", "--output_file=YARD/run.gin", says="run.gin.*; give"
    ),
    "report over its summary": case(
        "report", SUMMARY, f"--output_file={SUMMARY}", says="good.summary.json .*; give another"
    ),
    "eval into another folder": case(
        "eval",
        RUN,
        "--metric=bleu",
        "--output_dir=YARD/begun",
        says="begun.*run.gin.*; give another",
    ),
    "eval into a file": case(
        "eval",
        RUN,
        "--metric=bleu",
        "--output_dir=YARD/test.tsv",
        says="test.tsv cannot be written, .* in the way; ",
    ),
    "eval below a file": case(
        "eval",
        RUN,
        "--metric=bleu",
        "--output_dir=YARD/test.tsv/e",
        says="cannot be written, .* in the way; ",
    ),
    "eval to a URL": case(
        "eval",
        RUN,
        "--metric=bleu",
        "--output_dir=gs://a/b",
        says="gs://a/b is not a local .*; give",
    ),
    "train into another folder": case(
        "train", TRAIN, "--output_dir=YARD/other", says="other exists and is no training run; give"
    ),
    "train into a file": case(
        "train",
        TRAIN,
        "--output_dir=YARD/test.tsv",
        says="test.tsv cannot be written, .* in the way; ",
    ),
    "train below a file": case(
        "train", TRAIN, "--output_dir=YARD/test.tsv/t", says="test.tsv/t.*; "
    ),
}
NOWHERE = {
    f"{command} to {where}": case(
        command,
        *argv,
        f"--output_file={path}",
        says="--output_file .*(out.json|folder) cannot be written.*; ",
    )
    for command, argv in {
        "decode": (RUN,),
        "score": (*PAIR, PAIRS),
        "verify": (RUN,),
        "bench": (RUN,),
        "acceptance": (RUN,),
        "forecast": (RUN, "--passes=YARD/passes.jsonl"),
        "compile": (RUN, "--topology=v4:2x2x1"),
        "report": (SUMMARY,),
    }.items()
    for where, path in {
        "no folder": "OUT/none/out.json",
        "a folder": "YARD/folder",
        "below a file": "YARD/test.tsv/out.json",
    }.items()
}
OTHERS = {
    "figures below a file": case(
        "report",
        SUMMARY,
        "--figures_dir=YARD/test.tsv/figures",
        says="--figures_dir .*; give another",
    ),
    "a profile below a file": case(
        "bench", RUN, "--profile_dir=YARD/test.tsv/p", says="--profile_dir .*test.tsv/p.*; "
    ),
    "scalars below a file": case(
        "eval",
        RUN,
        "--metric=bleu",
        "--output_dir=OUT/e",
        "--metrics_dir=YARD/test.tsv/m",
        says="--metrics_dir .*; ",
    ),
    "a cache below a file": case(
        "decode",
        RUN,
        "--compilation_cache_dir=YARD/test.tsv/c",
        says="--compilation_cache_dir .*test.tsv/c .*; give another",
    ),
    "a cache that is a file": case(
        "decode",
        RUN,
        "--compilation_cache_dir=YARD/test.tsv",
        says="--compilation_cache_dir .*test.tsv .*; give another",
    ),
}

CASES = {**OVER, **NOWHERE, **OTHERS}
