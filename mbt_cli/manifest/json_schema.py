"""The JSON Schema of manifests, for editors that complete and check TOML."""

import json
from typing import Any

from pydantic import BaseModel

from mbt_cli.core.chat import Json
from mbt_cli.manifest.field_docs import Documented
from mbt_cli.manifest.schema import DocumentTables, StageBlock
from mbt_cli.stages.base import Stage
from mbt_cli.stages.kinds import STAGES

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_text() -> str:
    """The schema as indented JSON."""
    return json.dumps(schema(), indent=2)


def schema() -> Json:
    """Draft 2020-12; every stage kind has its own fields beside those that all share.

    Fields that an axis or a variant may fill in are not required here: `mbt check` looks at that.
    """
    whole = _schema_of(DocumentTables)
    definitions: dict[str, Any] = whole.setdefault("$defs", {})
    kinds = []
    for kind, stage in STAGES.items():
        definitions[f"stage_{kind}"] = _stage_schema(kind, stage, definitions)
        kinds.append({"$ref": f"#/$defs/stage_{kind}"})
    whole["properties"]["stage"] = {"type": "array", "items": {"oneOf": kinds}}
    whole["properties"]["models"]["additionalProperties"] = {"$ref": "#/$defs/ModelTable"}
    return {"$schema": _DIALECT, **whole, "title": "mbt manifest"}


def _stage_schema(kind: str, stage: type[Stage], definitions: dict[str, Any]) -> dict[str, Any]:
    envelope = _lifted(_schema_of(StageBlock), definitions)
    own = _lifted(_schema_of(stage), definitions)
    properties = {**envelope["properties"], **own["properties"], "kind": {"const": kind}}
    return {
        "type": "object",
        "description": stage.summary,
        "properties": properties,
        "required": ["kind", "name"],
        "additionalProperties": False,
    }


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(ref_template="#/$defs/{model}", schema_generator=Documented)


def _lifted(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema with its definitions moved to the common ones."""
    definitions.update(schema.pop("$defs", {}))
    return schema
