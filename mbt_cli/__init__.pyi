from mbt_cli.api import Manifest, StudyReport, load_manifest, run, scan

__all__ = ["Manifest", "StudyReport", "load_manifest", "run", "scan"]
