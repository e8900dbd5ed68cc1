"""The learning rate during warmup as a picture; matplotlib is an extra, loaded here alone."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from dscalc.errors import InputError

if TYPE_CHECKING:
    from dscalc.answers.batch import BatchAnswer

FORMS = ("svg", "png")
AFTER = 1.25  # of the warmup: how far the picture goes


def chart_form(path: str) -> str:
    """The form of a picture by its file's suffix.

    Raises:
        InputError: not one that is drawn.
    """
    form = path.rpartition(".")[2].lower()
    if form not in FORMS or "." not in path:
        raise InputError(f"{path} ends in neither .svg nor .png", where="--plot")
    return form


def schedule_chart(answer: BatchAnswer, form: str) -> bytes:
    """Draw the schedule.

    Args:
        answer: what ``batch`` returned.
        form: ``svg`` or ``png``.

    Returns:
        The bytes of the picture.

    Raises:
        InputError: matplotlib is not installed, or there is no schedule.
    """
    warmup = answer.warmup
    moments = warmup.schedule()
    if warmup.peak is None or len(moments) < 2:
        raise InputError("has nothing to draw: there is no warmup; add --base-batch and --warmup", where="--plot")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("needs matplotlib; install it with: pip install 'dscalc[plot]'", where="--plot") from None
    rated = warmup.start_lr is not None
    unit = "images or sequences" if answer.seq_len is None else "sequences"
    along = [float((m.epoch if m.step is None else m.step) or 0.0) for m in moments]
    rates = [float((m.lr if rated else m.factor) or 0.0) for m in moments]
    with matplotlib.rc_context({"svg.hashsalt": "dscalc", "font.size": 10}):
        figure = Figure(figsize=(7.0, 4.0), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([*along, along[-1] * AFTER], [*rates, rates[-1]], color="tab:blue")
        axes.axvline(along[-1], color="tab:gray", linestyle=":", linewidth=1.0)
        axes.set_xlabel("updates" if moments[0].step is not None else "epochs")
        axes.set_ylabel("learning rate" if rated else "learning rate over its base")
        axes.set_title(f"Warmup for {answer.batch:,} {unit} an update ({answer.rates.rule} rule)")
        axes.set_ylim(bottom=0.0)
        axes.set_xlim(left=0.0)
        axes.grid(alpha=0.3)
        file = io.BytesIO()
        figure.savefig(file, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
    return file.getvalue()
