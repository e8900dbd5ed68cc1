"""Moments of a step at which the memory of a stage is summed apart, and the groups of them that leaves share."""

from __future__ import annotations

FORWARD_MOMENT, LAST_MOMENT, FIRST_MOMENT, STEP_MOMENT = range(4)  # end of forward, backward of a layer, optimizer step
MOMENTS = 4

ALWAYS = (FORWARD_MOMENT, LAST_MOMENT, FIRST_MOMENT, STEP_MOMENT)
BEFORE_STEP = (FORWARD_MOMENT, LAST_MOMENT, FIRST_MOMENT)
FORWARD_AND_LAST = (FORWARD_MOMENT, LAST_MOMENT)  # as many micro-batches in flight as there ever are
BACKWARD = (LAST_MOMENT, FIRST_MOMENT)
AT_FORWARD, AT_LAST, AT_FIRST, AT_STEP = (FORWARD_MOMENT,), (LAST_MOMENT,), (FIRST_MOMENT,), (STEP_MOMENT,)
