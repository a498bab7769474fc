"""Chat templates: Jinja templates in a checkpoint that turn a conversation into a prompt."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specdec.tasks.loading import TaskError


def prompts_of(source: str, names: Mapping[str, str], file: str) -> Callable[[str], str]:
    """Returns a function from a user's message to the prompt for an answer.

    The template runs in a sandbox, with transformers' functions and filters.

    Args:
      source: the template.
      names: the special tokens by transformers' names.
      file: the tokenizer's file, for errors.

    Raises:
      TaskError: jinja2 is not installed, or the template is not valid. The function raises it if
        the template rejects a message.
    """
    try:
        import jinja2
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as error:
        raise TaskError("a chat template needs jinja2: pip install '.[chat]'") from error

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    class Generation(jinja2.ext.Extension):
        """Accepts the tags around an assistant's text, which only training needs."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
    }
    with _one_line(file):
        template = environment.from_string(source)

    def prompt(text: str) -> str:
        given = {"messages": [{"role": "user", "content": text}], "tools": None, "documents": None}
        with _one_line(file):
            return template.render(**given, add_generation_prompt=True, **names)

    return prompt


@contextlib.contextmanager
def _one_line(file: str) -> Iterator[None]:
    """Converts every error to a TaskError of one line."""
    try:
        yield
    except Exception as error:  # of jinja2, or of the template's own code
        line = str(error).partition("\n")[0]
        raise TaskError(
            f"the chat template of {file} cannot be used ({line}); correct it, or decode without "
            "chat"
        ) from error
