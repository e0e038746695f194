"""What the doctor looks at, in order: this machine, then a manifest against it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mbt_cli.errors import ManifestError
from mbt_cli.machine.disk import disk_findings
from mbt_cli.machine.findings import Finding, broken
from mbt_cli.machine.gpus import gpu_findings
from mbt_cli.machine.needs import models_of, need_findings, needed_variables
from mbt_cli.machine.orphans import orphan_findings
from mbt_cli.machine.replies import reply_findings
from mbt_cli.machine.software import (
    extra_findings,
    python_findings,
    slurm_finding,
    vllm_finding,
)
from mbt_cli.machine.stock import stock_findings
from mbt_cli.machine.tokens import token_findings
from mbt_cli.manifest.load import Manifest
from mbt_cli.settings import Machine


def machine_findings(machine: Machine, manifest: Manifest | None) -> Iterator[Finding]:
    """Everything about this machine; tokens by what the manifest names, if there is one."""
    environment = machine.environment
    yield from python_findings()
    yield from extra_findings()
    yield from gpu_findings(environment)
    yield vllm_finding(environment)
    yield slurm_finding(environment)
    yield from disk_findings(machine)
    needed = {} if manifest is None else needed_variables(manifest, environment)
    yield from token_findings(environment, needed)
    yield from orphan_findings()


def manifest_findings(
    manifest: Manifest, machine: Machine, *, starts_servers: bool
) -> Iterator[Finding]:
    """Everything that a manifest needs, and one tiny reply from each of its models."""
    yield from need_findings(manifest, machine)
    yield from stock_findings(manifest, machine)
    yield from reply_findings(models_of(manifest), machine, starts_servers=starts_servers)


def opened(
    path: Path | None, open_it: Callable[[Path], Manifest]
) -> tuple[Manifest | None, Sequence[Finding]]:
    """The manifest, or a line for each thing that is wrong with it; neither where none is named."""
    if path is None:
        return None, ()
    try:
        return open_it(path), ()
    except ManifestError as error:
        do = f"correct it: mbt check {path}"
        return None, [broken("manifest", p.where, p.what, do) for p in error.problems]
