from mbt_cli.api import (
    ComparedCells,
    Manifest,
    StudyReport,
    StudyTable,
    compare,
    load_manifest,
    run,
    scan,
    table,
)

__all__ = [
    "ComparedCells",
    "Manifest",
    "StudyReport",
    "StudyTable",
    "compare",
    "load_manifest",
    "run",
    "scan",
    "table",
]
