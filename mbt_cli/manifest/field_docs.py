"""The docstrings that stand under the fields of a settings class."""

import ast
import inspect
import textwrap
from itertools import pairwise

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema


class Documented(GenerateJsonSchema):
    """A JSON Schema that describes each property by the docstring under its field."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        docs = field_docs(schema["cls"])
        for name, described in made.get("properties", {}).items():
            if name in docs:
                described.setdefault("description", docs[name])
        return made


def field_docs(cls: type[object]) -> dict[str, str]:
    """Field name to its docstring, inherited fields included; fields without one are left out.

    A field that a subclass declares anew has the subclass's docstring, or none.

    Example:
        >>> from mbt_cli.core.sampling import Sampling
        >>> field_docs(Sampling)["temperature"]
        'Softmax temperature; 0 is greedy.'
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            own = inspect.get_annotations(base)
            found = {name: doc for name, doc in found.items() if name not in own}
            found |= _own_docs(base)
    return found


def _own_docs(cls: type[object]) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(doc.value.value)
        for field, doc in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
        and isinstance(doc.value.value, str)
    }
