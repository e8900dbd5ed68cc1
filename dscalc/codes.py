"""The names behind the integer code columns, in code order. ``--help`` reads them, so numpy is not imported here."""

from __future__ import annotations

SCHEDULES = ("1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe")
RECOMPUTES = ("none", "selective", "full")
ATTENTIONS = ("flash", "unfused")
CP_COMMS = ("ring", "all-gather", "ulysses")
RANK_ORDERS = ("tp-cp-dp-pp", "tp-cp-pp-dp")  # neighbouring ranks first
PLACEMENTS = ("even", "by-cost", "embedding-as-layer")
OVERLAPS = ("tp", "dp", "pp", "ep")
OFFLOADS = ("optimizer", "parameters", "activations")
MOMENTS = ("forward_end", "loss", "backward_last_layer", "backward_first_layer", "optimizer_step")
LINKS = ("nvlink", "pcie", "network", "plain")
PROTOCOLS = ("LL", "LL128", "Simple")
LIBRARY_ALGORITHMS = ("ring", "tree", "nvls", "nvls-tree", "sharp")
LR_RULES = ("linear", "sqrt", "lamb", "none")
BATCH_LAWS = ("given", "kaplan", "deepseek", "step", "zhang")
