"""What arguments and options complete to; everything is imported at the key press only."""

import typer


def complete_manifest(incomplete: str) -> list[str]:
    """Manifests here, in manifests/ and in the folder that is typed; else those that mbt ships."""
    from mbt_cli.commands.completions import manifests

    return manifests(incomplete)


def complete_only(ctx: typer.Context, incomplete: str) -> list[str]:
    """Stages, cell addresses, and axes in any order; stages alone while the manifest is wrong."""
    from mbt_cli.commands.completions import hints_of, stages_of, typed_line
    from mbt_cli.core.completing import only_steps

    line = typed_line(ctx)
    return only_steps(hints_of(line).cells or stages_of(line), incomplete)


def complete_set(ctx: typer.Context, incomplete: str) -> list[str]:
    """Keys part by part, then the value that a key has and those that it may have."""
    from mbt_cli.commands.completions import hints_of, typed_line
    from mbt_cli.core.completing import set_steps

    return set_steps(hints_of(typed_line(ctx)).keys, incomplete)


def complete_table(ctx: typer.Context) -> list[str]:
    """Tables of the manifest's report stages."""
    from mbt_cli.commands.completions import hints_of, typed_line

    return list(hints_of(typed_line(ctx)).tables)


def complete_model(ctx: typer.Context) -> list[str]:
    """Models of the manifest."""
    from mbt_cli.commands.completions import hints_of, typed_line

    return list(hints_of(typed_line(ctx)).models)


def complete_benchmark(ctx: typer.Context) -> list[str]:
    """Benchmarks of the manifest."""
    from mbt_cli.commands.completions import hints_of, typed_line

    return list(hints_of(typed_line(ctx)).benchmarks)


def complete_cluster(ctx: typer.Context) -> list[str]:
    """Presets of clusters."""
    from mbt_cli.commands.completions import presets_of, typed_line

    return list(presets_of(typed_line(ctx)).names("slurm"))


def complete_model_preset(ctx: typer.Context) -> list[str]:
    """Presets of models."""
    from mbt_cli.commands.completions import presets_of, typed_line

    return list(presets_of(typed_line(ctx)).names("models"))


def complete_topic() -> list[str]:
    """Topics of `mbt help`."""
    from mbt_cli.commands.completions import topics

    return topics()


def complete_study() -> list[str]:
    """Studies in the runs folder."""
    from mbt_cli.commands.completions import studies

    return studies()


def complete_cell_folder(incomplete: str) -> list[str]:
    """Folders of artifacts, down to the cells."""
    from mbt_cli.commands.completions import cell_folders

    return cell_folders(incomplete)


def complete_study_path(incomplete: str) -> list[str]:
    """Manifests, and folders of artifacts."""
    from mbt_cli.commands.completions import cell_folders, manifests_here

    return [*manifests_here(incomplete), *cell_folders(incomplete)]
