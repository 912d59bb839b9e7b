"""docs/reference.md is what the docstrings say, and names every argument."""

import inspect

import constructs_lib
from tools.construct_reference import PAGE, page


def test_the_page_is_what_the_docstrings_say() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `python -m tools.construct_reference`"


def test_every_argument_of_every_construct_is_on_the_page() -> None:
    sections = {part.split("\n", 1)[0]: part for part in page().split("\n## ")}
    looked_at = 0
    for name in constructs_lib.__all__:
        thing = getattr(constructs_lib, name)
        if not inspect.isclass(thing) or "Args:" not in (inspect.getdoc(thing) or ""):
            continue
        for argument, parameter in inspect.signature(thing.__init__).parameters.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                looked_at += 1
                assert f"`{argument}`" in sections[name], f"{name}: {argument}"
    assert looked_at > 50
    for option in inspect.get_annotations(constructs_lib.EndpointOptions):
        assert f"`{option}`" in sections["EndpointOptions"]
