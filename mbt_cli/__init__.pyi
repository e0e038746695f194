from mbt_cli.python_door import Manifest, StudyReport, load_manifest, run, scan

__all__ = ["Manifest", "StudyReport", "load_manifest", "run", "scan"]
