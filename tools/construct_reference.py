"""Writes docs/reference.md from the docstrings and signatures of `constructs_lib`.

    python -m tools.construct_reference

The page is for people who choose; an editor shows the same text beside the code.
"""

import inspect
import re
import sys
from pathlib import Path
from typing import Any, Final

import constructs_lib

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "reference.md"
_LISTS: Final = {"Args": "argument", "Attributes": "attribute"}
_SECTIONS: Final = (*_LISTS, "Defaults", "Defines", "Raises")
_ENTRY: Final = re.compile(r"^    ([\w*][\w*, ]*): (.*)$")
_OPTION: Final = re.compile(r"^- ((?:`\w+`(?:, )?)+): (.*)$")
_HEAD: Final = """# Reference of the constructs

Every public name of `constructs_lib`: what it takes, what it defines, and what it refuses. Written
from the docstrings by `python -m tools.construct_reference`. Limits and their sources are in
`constructs_lib/limits.py`; how the parts work together is in [endpoints in
operation](endpoints.md) and [stacks](stacks.md).
"""


def page() -> str:
    """The whole page."""
    named = [(name, getattr(constructs_lib, name)) for name in sorted(constructs_lib.__all__)]
    classes = [(name, thing) for name, thing in named if inspect.isclass(thing)]
    functions = [(name, thing) for name, thing in named if inspect.isfunction(thing)]
    return "\n".join([_HEAD, *(_entry(name, thing) for name, thing in [*classes, *functions])])


def _entry(name: str, thing: Any) -> str:
    lines = [f"## {name}", ""]
    parameters = _parameters(thing)
    for title, block in _blocks(inspect.getdoc(thing) or ""):
        if title in _LISTS:
            lines += [f"| {_LISTS[title]} | default | |", "|---|---|---|"]
            for argument, meaning in _entries(block, _ENTRY):
                lines.append(f"| {argument} | {_default(argument, parameters)} | {meaning} |")
        elif title:
            lines.append(f"**{title}**: {_text(block)}")
        elif all(line.startswith("    ") for line in block):
            lines += ["```python", *(line[4:] for line in block), "```"]
        elif _OPTION.match(block[0]):
            lines += ["| argument | |", "|---|---|"]
            lines += [f"| {named} | {meaning} |" for named, meaning in _entries(block, _OPTION)]
        else:
            lines.append(_text(block))
        lines.append("")
    return "\n".join(lines)


def _parameters(thing: Any) -> dict[str, inspect.Parameter]:
    try:
        # The CDK's metaclass hides the arguments behind its own.
        return dict(
            inspect.signature(thing.__init__ if inspect.isclass(thing) else thing).parameters
        )
    except (TypeError, ValueError):
        return {}


def _default(argument: str, parameters: dict[str, inspect.Parameter]) -> str:
    shown = []
    for name in argument.replace("`", "").split(", "):
        found = parameters.get(name)
        if found is None or found.kind is inspect.Parameter.VAR_KEYWORD:
            shown.append("")
        elif found.default is inspect.Parameter.empty:
            shown.append("required")
        elif isinstance(found.default, (str, int, float, tuple, type(None))):
            shown.append(f"`{found.default!r}`")
        else:
            # Enumerations of the CDK; factories of fields have no value to show.
            value = str(found.default)
            shown.append(f"`{value}`" if re.fullmatch(r"\w+\.\w+", value) else "")
    return ", ".join(dict.fromkeys(shown))


def _blocks(text: str) -> list[tuple[str, list[str]]]:
    """Paragraphs with the title of their section, empty for plain ones."""
    found: list[tuple[str, list[str]]] = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        title, _, rest = lines[0].partition(":")
        if title in _SECTIONS:
            found.append((title, ([rest.strip()] if rest.strip() else []) + lines[1:]))
        else:
            found.append(("", lines))
    return found


def _entries(block: list[str], entry: re.Pattern[str]) -> list[tuple[str, str]]:
    """Arguments with what is said of them, which may go on over further lines."""
    found: list[list[str]] = []
    for line in block:
        if begun := entry.match(line):
            names = begun[1].replace("`", "").split(", ")
            found.append([", ".join(f"`{name}`" for name in names), begun[2]])
        else:
            found[-1].append(line.strip())
    return [(names, _cell(meaning)) for names, *meaning in found]


def _cell(lines: list[str]) -> str:
    return " ".join(lines).replace("|", "\\|")


def _text(block: list[str]) -> str:
    return " ".join(line.strip() for line in block)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
    sys.exit(0)
