"""The pair that ships with specdec, from Python or a notebook: python examples/interactive.py"""

import specdec
from specdec import tasks
from specdec.common import terminal
from specdec.sampling import Sampling
from specdec.verifiers import Coupled

TEXTS = [
    "translate English to German: Three bakers must prepare a tasty cherry that is small.",
    "translate English to German: In March, the boss sells ten white flowers carefully.",
    "summarize: The school in the center of Austin burned down late on Friday. Doctors treated "
    "nine people who had breathed in smoke. The police believe that a faulty cable started the "
    "fire. It took 200 firefighters until eight in the morning to put it out.",
]


def show(model: specdec.InteractiveModel, texts: list[str], seed: int = 0) -> None:
    """Who wrote each word, and what that saved."""
    for decoded in model.decode(texts, seed=seed):
        print(f"  {model.paint(decoded)}")
        print(
            f"  {len(decoded.tokens)} tokens in {decoded.calls} target calls, "
            f"alpha {decoded.alpha:.2f}, log-probability {decoded.log_prob:.2f}"
        )
    print(*model.stats.lines(), sep="\n")


print(terminal.legend())
print("\nGreedy:")
model = specdec.InteractiveModel.demo()
show(model, TEXTS)

print("\nAt temperature 1, with the noise that the target alone would draw with:")
show(specdec.InteractiveModel.demo(sampling=Sampling(1.0), verifier=Coupled()), TEXTS[:1], seed=3)

print("\nHow likely the target finds two translations:")
options = ["Drei Bäcker müssen eine köstliche Kirsche, die klein ist, kochen.", "Drei Bäcker."]
for option, log_prob in zip(options, model.score([TEXTS[0]] * 2, options), strict=True):
    print(f"  {log_prob:8.2f}  {option}")

print("\nBLEU of the first 20 sentences of the task's test split:")
task = tasks.synthetic_task("specdec_ende")
(batch,) = tasks.batches(task, "test", {"inputs": 48, "targets": 48}, batch_size=20, limit=20)
assert batch.target_texts is not None
model.reset()
values = model.evaluate(zip(batch.input_texts, batch.target_texts, strict=True), [tasks.bleu])
print(f"  {values['bleu']:.1f}")
print(*model.stats.lines(), sep="\n")
