"""The picture of a run that is always there: loss over steps, and reward where there is one."""

from importlib.util import find_spec
from pathlib import Path

from mbt_cli.core.training_job import LOG, log_lines


def draw_curve(folder: Path, files: Path) -> None:
    """Write loss.png from the log; a line says so where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        print("no loss.png: matplotlib is not installed", flush=True)  # noqa: T201
        return
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    lines = log_lines((folder / LOG).read_bytes())
    shown = [
        name for name in ("loss", "reward") if any(line.get(name) is not None for line in lines)
    ]
    figure, axes = pyplot.subplots(len(shown) or 1, 1, squeeze=False, figsize=(6, 3 * len(shown)))
    for name, axis in zip(shown, axes[:, 0], strict=False):
        points = [line for line in lines if line.get(name) is not None]
        axis.plot([p["step"] for p in points], [p[name] for p in points], color="#1f5a8a")
        axis.set(xlabel="step", ylabel=name)
    figure.tight_layout()
    figure.savefig(files / "loss.png", dpi=120)
    pyplot.close(figure)
