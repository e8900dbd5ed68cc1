"""Scripts that start ``dscalc bench`` on several nodes: torchrun on each, or under Slurm."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from dscalc.units import HOUR, MINUTE

LAUNCHERS = ("torchrun", "slurm")
SETUP_S = 10 * MINUTE  # to start Python on every node, connect, and end
LARGEST_PORT_OFFSET = 20_000


def slurm_script(nodes: int, ranks_per_node: int, budget_s: float, words: Sequence[str]) -> str:
    """A batch script: one torchrun a node, in one job step.

    Args:
        nodes: nodes of the job [count].
        ranks_per_node: GPUs of one node [count].
        budget_s: time that the measurements may take [s].
        words: options of ``dscalc bench``.

    Returns:
        Text for ``sbatch``.
    """
    limit = math.ceil((budget_s + SETUP_S) / MINUTE)
    hours, minutes = divmod(limit, HOUR // MINUTE)
    return f"""#!/bin/bash
#SBATCH --job-name=dscalc-bench
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={ranks_per_node}
#SBATCH --exclusive
#SBATCH --time={hours:02d}:{minutes:02d}:00
#SBATCH --output=dscalc-bench-%j.log
# Add --partition and --account as your site asks. A partition without GPUs: delete the line with --gpus-per-node;
# gloo is measured then.
set -euo pipefail

# Activate the environment that has dscalc and torch here, e.g.: source /path/to/venv/bin/activate

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % {LARGEST_PORT_OFFSET}))
# Name the interface to use where nodes have several, e.g.:
# export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0

srun --ntasks-per-node=1 --kill-on-bad-exit=1 bash -c '
  exec python3 -m torch.distributed.run \\
    --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --nproc-per-node={ranks_per_node} \\
    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \\
    -m dscalc bench {_quoted(words)}'
"""


def torchrun_script(nodes: int, ranks_per_node: int, words: Sequence[str]) -> str:
    """One command a node, for a shell on each.

    Args:
        nodes: nodes of the run [count].
        ranks_per_node: GPUs of one node [count].
        words: options of ``dscalc bench``.

    Returns:
        Text.
    """
    bench = f"-m dscalc bench {shlex.join(words)}"
    if nodes == 1:
        return f"torchrun --nproc-per-node={ranks_per_node} {bench}\n"
    lines = ["# On every node, within a minute or so; put the first node's address for FIRST_NODE."]
    common = f"--nproc-per-node={ranks_per_node} --master-addr=FIRST_NODE --master-port=29500"
    lines += [f"torchrun --nnodes={nodes} --node-rank={node} {common} {bench}" for node in range(nodes)]
    return "\n".join(lines) + "\n"


def _quoted(words: Sequence[str]) -> str:
    """Words for a shell inside single quotes."""
    return shlex.join(words).replace("'", "'\\''")
