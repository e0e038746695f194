"""A settings class in words: each field with its type, default, marks and docstring."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mbt_cli.core.model import Grows, RunOnly
from mbt_cli.manifest.field_docs import field_docs
from mbt_cli.manifest.toml_writer import toml_value

Words = Mapping[str, str]
"""Class name to the section of the reference that tells of it."""

_PLAIN = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "nothing",
}
_LIMITS = (
    ("minimum", "at least"),
    ("exclusiveMinimum", "above"),
    ("maximum", "at most"),
    ("exclusiveMaximum", "below"),
)
_NO_LIMIT = 1e15
"""Beyond it a limit is the computer's, not the user's."""
_MARKS = (
    (RunOnly, "never changes results"),
    (Grows, "a larger value only adds rows"),
)


def field_lines(
    model: type[BaseModel],
    *,
    elsewhere: Words,
    leave_out: Collection[str] = (),
    needed: Collection[str] = (),
) -> Iterator[str]:
    """One Markdown list item a field; fields of tables inside it follow as `outer.inner`.

    Args:
        model: The settings class.
        elsewhere: Classes that have a section of their own and are only named here.
        leave_out: Fields that are told elsewhere.
        needed: Fields that are required though the class gives them a default.
    """
    schema = model.model_json_schema()
    yield from _lines(model, schema, elsewhere, set(leave_out), set(needed), prefix="")


def _lines(
    model: type[BaseModel],
    schema: Mapping[str, Any],
    elsewhere: Words,
    leave_out: set[str],
    needed: set[str],
    *,
    prefix: str,
) -> Iterator[str]:
    docs = field_docs(model)
    types = schema["properties"]
    definitions = schema.get("$defs", {})
    for name, field in model.model_fields.items():
        if name in leave_out:
            continue
        parts = [type_words(types[name], definitions, elsewhere), _default(field, name in needed)]
        parts += [words for mark, words in _MARKS if mark in field.metadata]
        doc = " ".join(docs.get(name, "").split())
        yield f"- `{prefix}{name}` ({'; '.join(p for p in parts if p)}): {doc}"
        inner = _table_inside(field)
        if inner is not None and inner.__name__ not in elsewhere:
            own = inner.model_json_schema()
            yield from _lines(inner, own, elsewhere, set(), set(), prefix=f"{prefix}{name}.")


def _table_inside(field: FieldInfo) -> type[BaseModel] | None:
    """The settings class that a field holds, where it holds one."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def type_words(schema: Mapping[str, Any], definitions: Mapping[str, Any], elsewhere: Words) -> str:
    """What a JSON Schema allows, in the words of somebody who writes TOML.

    Example:
        >>> type_words({"type": "integer", "minimum": 1}, {}, {})
        'whole number, at least 1'
        >>> type_words({"anyOf": [{"type": "string"}, {"type": "null"}]}, {}, {})
        'text'
        >>> type_words({"type": "array", "items": {"enum": ["a", "b"]}}, {}, {})
        'list of `"a"` or `"b"`'
    """
    if "$ref" in schema:
        return _referred(schema["$ref"], definitions, elsewhere)
    if "discriminator" in schema:
        return "name, or table with `kind`"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        each = [type_words(c, definitions, elsewhere) for c in choices if c.get("type") != "null"]
        return _joined(each)
    if "const" in schema or "enum" in schema:
        return _joined([f"`{toml_value(v)}`" for v in schema.get("enum", [schema.get("const")])])
    return _of_type(schema, definitions, elsewhere)


def _of_type(schema: Mapping[str, Any], definitions: Mapping[str, Any], elsewhere: Words) -> str:
    kind = schema.get("type")
    if kind == "array":
        return f"list of {type_words(schema.get('items', {}), definitions, elsewhere)}"
    if kind == "object":
        values = schema.get("additionalProperties")
        if not isinstance(values, Mapping) or not values:
            return "table"
        return f"table of {type_words(values, definitions, elsewhere)}"
    limits = [
        f"{words} {schema[key]:g}"
        for key, words in _LIMITS
        if key in schema and schema[key] < _NO_LIMIT
    ]
    return ", ".join([_PLAIN.get(str(kind), "anything"), *limits])


def _referred(reference: str, definitions: Mapping[str, Any], elsewhere: Words) -> str:
    name = reference.rpartition("/")[2]
    if name in elsewhere:
        return f"table, see `{elsewhere[name]}`"
    meant = definitions[name]
    return "table" if "properties" in meant else type_words(meant, definitions, elsewhere)


def _joined(words: list[str]) -> str:
    """`a, b or c`, each once."""
    *first, last = dict.fromkeys(words)
    return f"{', '.join(first)} or {last}" if first else last


def _default(field: FieldInfo, is_needed: bool) -> str:
    if field.is_required() or is_needed:
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, BaseModel):
        return "" if isinstance(value, BaseModel) else "may be left out"
    if value in ({}, [], ()):
        return "default empty"
    return f"default `{toml_value(value)}`"
