"""`dspark-train schema`: the topology file's schema, for editors (JSON) and for reading (Markdown)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_INTRODUCTION = """\
# The topology file

<!-- Made by `dspark-train schema --markdown > docs/topology.md`; a test checks that it is current. -->

A topology says what to run, on which nodes, within which bounds. `topologies/` holds some that run as they are.
Every key is checked when a file is read: all problems are reported at once, each with its line and what to do.
`--set a.b=c` replaces a value from the command line; the value is read as YAML.

Editors complete and check the keys with [topology.schema.json](topology.schema.json): begin a file with
`# yaml-language-server: $schema=../docs/topology.schema.json`.

Texts and numbers follow YAML 1.2: `off` and `yes` are texts, `1e-4` is a number. A key without a default is required.
"""
_TRAIN_INTRODUCTION = """\
Fields of speculators {version}'s `TrainConfig`, under their own names. A field that another key of the topology decides
is refused, naming that key; so is a field of another algorithm. Descriptions and defaults are speculators' own. On CPU,
`loss_implementation` is `eager`, and but for mtp `draft_attn_impl` is `sdpa`.
"""


def command(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page instead.")] = False,
) -> None:
    """Print the JSON schema of the topology file.

    Example: dspark-train schema > topology.schema.json
    """
    import json

    print(reference() if markdown else json.dumps(json_schema(), indent=1))


def json_schema() -> dict[str, Any]:
    """The JSON schema, with the fields of `draft.train` filled in."""
    from dspark_train.topology.schema import Topology
    from dspark_train.topology.train_fields import settable

    schema = Topology.model_json_schema()
    train = schema["$defs"]["Draft"]["properties"]["train"]
    train["properties"] = {
        name: {key: value for key, value in field.items() if key != "group"} for name, field in settable().items()
    }
    train["additionalProperties"] = False
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "dspark-train topology"}
    return head | {key: value for key, value in schema.items() if key != "title"}


def reference() -> str:
    """The reference page, in Markdown."""
    from dspark_train.topology.schema import Topology

    return "\n".join([_INTRODUCTION, *_sections(Topology, ""), *_train()])


def _sections(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """The plain keys of a section as a table, then each section in it."""
    from dspark_train.topology.phrases import section_of
    from dspark_train.topology.source import join

    plain = {name: field for name, field in model.model_fields.items() if section_of(field) is None}
    if prefix:
        yield f"## {prefix}\n\n{_sentence(model)}\n"
    if plain:
        yield "| key | type | default | |\n|---|---|---|---|"
        yield from (
            _row(join(prefix, name), _type(model, name), _default(field), field) for name, field in plain.items()
        )
        yield ""
    for name, field in model.model_fields.items():
        section = section_of(field)
        if section is not None:
            yield from _sections(section, join(prefix, name))


def _sentence(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


def _row(key: str, kind: str, default: str, field: FieldInfo) -> str:
    return f"| `{key}` | {kind} | {default} | {_cell(field.description or '')} |"


def _type(model: type[BaseModel], name: str) -> str:
    return _kind(model.model_json_schema()["properties"][name])


def _kind(schema: dict[str, Any]) -> str:
    """A JSON schema of one value in a few words, its bounds included."""
    if "anyOf" in schema:
        return f"{_kind(next(one for one in schema['anyOf'] if one.get('type') != 'null'))} or null"
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    words = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {schema[key]:g}" for key, sign in signs.items() if key in schema and abs(schema[key]) < 2**53]
    return " ".join([words.get(schema.get("type", ""), "mapping"), *limits])


def _default(field: FieldInfo) -> str:
    import json

    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return f"`{json.dumps(value)}`"


def _train() -> Iterator[str]:
    import json

    from dspark_train.topology.train_fields import settable, snapshot

    yield f"## Fields of draft.train\n\n{_TRAIN_INTRODUCTION.format(version=snapshot()['speculators'])}"
    yield "| field | for | type | default | |\n|---|---|---|---|---|"
    users = snapshot()["algorithms"]
    for name, field in settable().items():
        algorithms = ", ".join(users.get(field["group"], ["all"]))
        default = f"`{json.dumps(field['default'])}`" if "default" in field else "`[]`"
        yield f"| `{name}` | {algorithms} | {_kind(field)} | {default} | {_cell(field['description'])} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
