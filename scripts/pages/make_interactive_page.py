"""Makes docs/reference/interactive-model.md of the signature and docstring of InteractiveModel.

python scripts/pages/make_interactive_page.py
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from specdec.engine import Settings
from specdec.integrations.interactive import InteractiveModel

FILE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "interactive-model.md"
HEAD = """# InteractiveModel

`specdec.InteractiveModel(target, draft, ...)` decodes texts in Python or a notebook:

```py
import specdec

model = specdec.InteractiveModel("my-t5", "my-draft", gamma=5)
model.predict(["a text", "another text"])
model.predict(["a text"], temperature=0.7, max_length=64, seed=1)  # reads nothing again
```

`InteractiveModel.demo()` is the embedded pair.
"""
OTHERS = "settings"  # the argument that stands for those of `Settings`


def page() -> str:
    """Returns the text of docs/reference/interactive-model.md."""
    arguments = "\n".join(_arguments())
    methods = "\n".join(_methods())
    return f"{HEAD}\n## Arguments\n\n{arguments}\n\n## Methods\n\n{methods}\n"


def described(docstring: str) -> dict[str, str]:
    """Returns the meaning of each argument of a docstring's section `Args:`, by name."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.cleandoc(docstring), re.M | re.S)
    assert section is not None
    items = re.split(r"^  (?=\S)", section[1], flags=re.M)[1:]
    pairs = (item.split(": ", 1) for item in items)
    return {name.lstrip("*"): _first_sentence(text) for name, text in pairs}


def _first_sentence(text: str) -> str:
    return " ".join(text.split()).split(". ")[0].rstrip(".")


def _arguments() -> Iterator[str]:
    for kind in (InteractiveModel, Settings):
        meanings = described(kind.__doc__ or "")
        for name, parameter in inspect.signature(kind).parameters.items():
            if name != OTHERS:
                value = parameter.default
                default = "" if value is parameter.empty else f"={value!r}"
                yield f"- `{name}{default}`: {meanings[name]}"


def _methods() -> Iterator[str]:
    for name, method in inspect.getmembers(InteractiveModel, inspect.isfunction):
        if not name.startswith("_"):
            names = [x for x in inspect.signature(method).parameters if x != "self"]
            meaning = _first_sentence(inspect.getdoc(method) or "").split(",")[0]
            yield f"- `{name}({', '.join(names)})`: {meaning[0].lower()}{meaning[1:]}"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
