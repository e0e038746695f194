"""Which files hold a split of a benchmark, and what tells that they are still the same."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from mbt_cli.core.benchmark_files import BenchmarkFiles
from mbt_cli.core.chat import Json
from mbt_cli.core.questions import Question
from mbt_cli.errors import UsageError
from mbt_cli.store.disk import sha256_of_file
from mbt_cli.store.hub import HubAccess, HubRequest, fetch_files, local_folder
from mbt_cli.store.records import check_suffix, data_files

Generate = Callable[[str], Iterator[Question] | None]
"""The questions of a split made by rule; None where a benchmark has files."""


def check_split(benchmark: BenchmarkFiles, split: str, *, generate: Generate) -> None:
    """Refuse a split that a benchmark cannot have, without reading or fetching anything.

    Raises:
        UsageError: It has no such split, no source at all, or a file in a form that is not read.
        MissingInputError: Its file is not there.
    """
    if generate(benchmark.splits.get(split, split)) is None and benchmark.source != "hub":
        for path in _local_paths(benchmark, split):
            check_suffix(path)


def source_fingerprint(
    benchmark: BenchmarkFiles, split: str, *, generate: Generate
) -> Mapping[str, Json]:
    """What decides the rows of a split beside the benchmark's own fields, without reading them.

    Local files count by their sha256, wherever they stand (so `files` and `difficulty` themselves
    need not enter a fingerprint); the hub by repository, files and revision; a generator by its
    settings alone, so it adds nothing.

    Raises:
        MissingInputError: A file is not there.
        UsageError: The benchmark names no source.
    """
    found: dict[str, Json] = {}
    if tiers := tier_files(benchmark):
        found["difficulty"] = [file_sha256(path) for path in tiers]
    if generate(benchmark.splits.get(split, split)) is not None:
        return found
    if benchmark.source == "hub":
        request = hub_request(benchmark, split)
        if local_folder(request.repo) is None:
            named = {"repo": request.repo, "revision": request.revision}
            return {**found, "hub": {**named, "files": request.patterns[0]}}
        paths = fetch_files(request, HubAccess(offline=True)).paths
        return {**found, "files": [file_sha256(path) for path in paths]}
    return {**found, "files": [file_sha256(path) for path in _local_paths(benchmark, split)]}


def hub_request(benchmark: BenchmarkFiles, split: str) -> HubRequest:
    """Which files of which repository hold a split.

    Raises:
        UsageError: The benchmark has no hub repository, or one is named without a revision.
    """
    official = benchmark.hub
    if official is None:
        raise UsageError("this benchmark has no hub repository", hint="name its `files` instead")
    repo = benchmark.repo or official.repo
    is_pinned = benchmark.revision or repo == official.repo or local_folder(repo)
    if not is_pinned:
        raise UsageError(
            f"`repo = {benchmark.repo!r}` has no `revision`",
            hint="name the commit, so that the study can be run again on the same rows",
        )
    name = benchmark.splits.get(split) or official.split_names.get(split, split)
    config = benchmark.config or official.config
    return HubRequest(
        repo=repo,
        patterns=(official.pattern.format(config=config, split=name),),
        revision=benchmark.revision or official.revision,
    )


def split_files(
    benchmark: BenchmarkFiles, split: str, hub: HubAccess
) -> tuple[Sequence[Path], str | None]:
    """Files of a split, and the commit where they come from the hub.

    Raises:
        MissingInputError: A file is not there.
        UsageError: The benchmark names no source.
    """
    if benchmark.source == "hub":
        fetched = fetch_files(hub_request(benchmark, split), hub)
        return fetched.paths, fetched.commit
    return _local_paths(benchmark, split), None


def tier_files(benchmark: BenchmarkFiles) -> Sequence[Path]:
    """The user's own files of difficulty tiers."""
    return data_files(Path(benchmark.difficulty).expanduser()) if benchmark.difficulty else ()


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file, kept in this process while its size and time stay the same."""
    stat = path.stat()
    return _sha256_at(path.resolve(), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=1024)
def _sha256_at(path: Path, size: int, modified: int) -> str:
    return sha256_of_file(path)


def _local_paths(benchmark: BenchmarkFiles, split: str) -> Sequence[Path]:
    source_split = benchmark.splits.get(split, split)
    pattern = benchmark.files.get(source_split) or benchmark.files.get(split)
    if pattern is None:
        named = ", ".join(f"`{name}`" for name in sorted(benchmark.files)) or "none"
        raise UsageError(
            f"no file for split `{source_split}`; `files` names {named}",
            hint=f'add `files = {{ {source_split} = "..." }}`, or `source = "hub"`',
        )
    return data_files(Path(pattern).expanduser())
