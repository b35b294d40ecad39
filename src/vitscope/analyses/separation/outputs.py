"""What a training that was probed for separation leaves beside its report: tidy tables, a figure per epoch and per
layer, and the animation. Written when the report is drawn and the tables are newer; from tables alone."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from vitscope.analyses.separation import drawing
from vitscope.analyses.separation.animation import encoder, frame, write_gif, write_videos
from vitscope.analyses.separation.profile import epoch_fits, fits_of
from vitscope.report.svg import PNG_DPI
from vitscope.runs import Run, atomic_write
from vitscope.runs.tables import to_csv

PROBE, PROBE_FITS = "probe_separation", "probe_separation_fits"
TIDY, FITS = "separation_training", "separation_epoch_fits"
LAST_WRITTEN = "training_fuzziness.gif"
MOST_FRAMES = 200  # of figures per epoch and of the animation: a longer training shows every second, third, ... probe


def tidy(probe: pd.DataFrame, training: pd.DataFrame | None) -> pd.DataFrame:
    """One row per epoch, split, point, token and layer: fuzziness, and the epoch's losses and accuracies.

    Before the first epoch there is no loss yet: those cells are empty.
    """
    wanted = ["epoch", "layer", "point", "token", "split", "fuzziness"]
    scores = ["train_loss", "test_loss", "train_accuracy", "test_accuracy"]
    known = pd.DataFrame(columns=["epoch", *scores]) if training is None else training[["epoch", *scores]]
    return probe[wanted].merge(known, on="epoch", how="left")


def write_outputs(run: Run) -> list[Path]:
    """All files that are missing or older than their tables; the caller is inside `house_style()`."""
    if _up_to_date(run):
        return []
    probe, training = run.table(PROBE), run.table("training")
    assert probe is not None
    fits = epoch_fits(probe)
    written = [
        atomic_write(run.tables_dir / f"{TIDY}.csv", to_csv(tidy(probe, training))),
        atomic_write(run.tables_dir / f"{FITS}.csv", to_csv(fits)),
    ]
    folder, frames = run.figures_dir, []
    for epoch, figure in epoch_figures(probe, run.table(PROBE_FITS)).items():
        written.append(_save(figure, folder / "epoch" / f"epoch_{epoch:03d}.png"))
        frames.append(frame(written[-1]))
    ffmpeg = encoder()
    if ffmpeg is not None:
        written += write_videos(folder / "training_fuzziness", frames, ffmpeg)
    for layer in sorted(probe[probe["point"] == "block"]["layer"].unique().tolist()):
        figure = drawing.draw_over_epochs(probe, layer)
        written.append(_save(figure, folder / "layer" / f"layer_{layer:02d}.png"))
    written.append(_save(drawing.draw_over_epochs(probe, fits=fits), folder / "fuzziness_vs_epochs.png"))
    if training is not None and len(training):
        written.append(_save(drawing.draw_accuracy(training), folder / "accuracy_vs_epochs.png"))
    written.append(write_gif(folder / LAST_WRITTEN, frames))
    return written


def fits_over_epochs(run: Run, probe: pd.DataFrame) -> pd.DataFrame:
    """`epoch_fits`: the table that an earlier drawing left, unless the training has gone on since."""
    stored = run.table(FITS) if _up_to_date(run) else None
    return epoch_fits(probe) if stored is None else stored


def _up_to_date(run: Run) -> bool:
    """The animation is written last: where it is newer than the tables, everything is."""
    last = run.figures_dir / LAST_WRITTEN
    sources = [run.tables_dir / f"{name}.csv" for name in (PROBE, "training")]
    return last.exists() and all(last.stat().st_mtime_ns >= s.stat().st_mtime_ns for s in sources if s.exists())


def epoch_figures(probe: pd.DataFrame, fits: pd.DataFrame | None = None, most: int = MOST_FRAMES) -> dict[int, Figure]:
    """{epoch: its profile}, all on the same axis; of more than `most` epochs every second, third, ... and the last.

    `fits` is the run's table of curves over the blocks at every epoch, where it has one.
    """
    limits = drawing.common_limits(probe)
    held_out = drawing.held_out_of(probe)
    figures = {}
    for epoch in chosen_epochs(probe, most):
        rows = probe[probe["epoch"] == epoch]
        splits = {str(split): part for split, part in rows.groupby("split")}
        other = next((part for split, part in splits.items() if split != held_out), None)
        own = fits_of(splits[held_out], fits, epoch=epoch, split=held_out)
        figures[epoch] = drawing.draw_profile(splits[held_out], own, limits=limits, title=f"Epoch {epoch}", other=other)
    return figures


def chosen_epochs(probe: pd.DataFrame, most: int) -> list[int]:
    epochs = sorted(int(epoch) for epoch in probe["epoch"].unique())
    step = -(-len(epochs) // most)
    return sorted({*epochs[::step], epochs[-1]})


def _save(figure: Figure, path: Path) -> Path:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=PNG_DPI, facecolor="white", metadata={"Software": None})
    return atomic_write(path, buffer.getvalue())
