"""Published measurements as rows: read a CSV, lower each row into a model, a layout and what was measured."""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from dscalc.errors import DscalcError
from dscalc.frozen import dataclass
from dscalc.records import Adapters, ModelShape
from dscalc.specs.layout_spec import LayoutSpec
from dscalc.specs.shape import MAX_LAYERS, ModelSpec
from dscalc.specs.stack import framework_stack, recipe_for, stack_choice
from dscalc.units import to_base
from dscalc.validation.table import LARGEST, Excluded, UnusableRowError, number, read_table, reason_of, whole

NEEDED = ("id", "source_key", "n_layers", "hidden", "n_heads", "vocab", "seq_len", "tp", "pp", "n_gpus", "peak_mem_gib")
# a row with one of these says too little, or measured something else, to be predicted
EXCLUDING_FLAGS = {
    "seq_unknown": "sequence length not stated",
    "gpu_unknown": "GPU not stated",
    "layout_unknown": "layout not stated",
    "layout_product_ne_gpus": "printed layout does not multiply to the GPUs",
    "modified_architecture": "modified architecture",
    "encoder_model": "encoder model",
    "model_and_gpu_ambiguous": "model or GPU ambiguous",
    "gpu_label_inconsistent": "GPU label inconsistent",
}
TECHNIQUES: tuple[tuple[str, dict[str, object]], ...] = (  # cumulative, in the order of the published ladder
    ("baseline", {}),
    ("+packed", {}),
    ("+compile", {"stack": "torchtune-compiled"}),
    ("+chunked cross entropy", {"loss": "chunked"}),
    ("+activation checkpointing", {}),
    ("+optimizer in backward", {"optimizer_in_backward": True}),
    ("+activation offloading", {"offload": ("activations",)}),
    ("+8-bit AdamW", {"optimizer": "adamw-8bit"}),
    ("LoRA", {"lora": 8, "optimizer": "adamw", "optimizer_in_backward": False}),
    ("QLoRA", {"nf4": True}),
)
SCHEDULE_WORDS = (
    ("zb-2p", "zb-h2"),
    ("zb-1p", "zb-h1"),
    ("zb-h2", "zb-h2"),
    ("zb-h1", "zb-h1"),
    ("zb-v", "zb-v"),
    ("gpipe", "gpipe"),
)
ADAPTER_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
NF4_BYTES = 0.516  # half a byte and its double-quantised block constants [Dettmers2023]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a source's printed memory is: quantity allocated, reserved or device, of the peak stage or of rank 0."""

    quantity: str
    rank: str
    unit: str
    precision: str = ""
    recompute: str = ""
    grad_accum: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One published row, lowered; ``measured_bytes`` is None where the run is recorded as out of memory."""

    id: str
    source: str
    group: str
    gpu: str
    quality: str
    flags: tuple[str, ...]
    shape: ModelShape
    layout: LayoutSpec
    adapters: Adapters | None
    measured_bytes: float | None
    meaning: Meaning


@lru_cache(maxsize=1)
def _meanings() -> dict[str, Meaning]:
    data = tomllib.loads((files("dscalc.validation") / "sources.toml").read_text(encoding="utf-8"))
    return {key: Meaning(**{k: v for k, v in row.items() if k != "source"}) for key, row in data.items()}


def meaning_of(source: str, notes: str) -> Meaning:
    """What the memory of a source means: the written table first, then the words of its notes."""
    known = _meanings()
    if source in known:
        return known[source]
    text = notes.lower()
    default = known["default"]
    if "nvidia-smi" in text or "rocm-smi" in text:
        return Meaning("device", default.rank, default.unit)
    if "allocated" in text and "reserved" not in text:
        return Meaning("allocated", default.rank, default.unit)
    return default


def read_rows(path: Path | None = None) -> tuple[list[Row], list[Excluded]]:
    """Rows with a memory figure (or recorded as out of memory) of the shipped table or of a CSV file with its columns.

    Args:
        path: a CSV file; None for the rows that ship.

    Returns:
        The rows that can be predicted, and those that cannot with the reason.

    Raises:
        InputError: the file cannot be read, is too large, is no table or lacks a column.
    """
    rows: list[Row] = []
    excluded: list[Excluded] = []
    for cells in read_table(path, "memory_rows.csv", NEEDED):
        if not cells["peak_mem_gib"] and cells.get("quality") != "X":
            if path is not None:
                excluded.append(Excluded(cells["id"], "peak_mem_gib not stated: nothing to compare with"))
            continue
        try:
            rows.append(lower_cells(cells))
        except (DscalcError, ValidationError, UnusableRowError) as error:
            excluded.append(Excluded(cells["id"] or "?", reason_of(error)))
    return rows, excluded


def lower_cells(cells: dict[str, str]) -> Row:
    """One row of published cells as a model, a layout and what was measured."""
    flags = tuple(f for f in cells.get("flags", "").split(";") if f)
    for flag in flags:
        if flag in EXCLUDING_FLAGS:
            raise UnusableRowError(EXCLUDING_FLAGS[flag])
    notes, source = cells.get("notes", ""), cells["source_key"]
    printed = number(cells, "peak_mem_gib", above=0.0, most=LARGEST)
    meaning = meaning_of(source, notes)
    options = _techniques(notes)
    stack = str(options.pop("stack", framework_stack(cells.get("framework", "")) or "generic"))
    shape = _shape(cells)
    adapters = _adapters(cells, options)
    return Row(
        id=cells["id"],
        source=source,
        group=cells.get("split_group", "") or source,
        gpu=cells.get("gpu", ""),
        quality=cells.get("quality", ""),
        flags=flags,
        shape=shape,
        layout=_layout(cells, stack, notes, options, adapters is not None, meaning),
        adapters=adapters,
        measured_bytes=None if printed is None else to_base(printed, meaning.unit, "bytes"),
        meaning=meaning,
    )


def _techniques(notes: str) -> dict[str, object]:
    marker = "cumulative technique row: "
    if marker not in notes:
        return {}
    label = notes.split(marker, 1)[1].split(";", 1)[0].split(",", 1)[0].strip()
    options: dict[str, object] = {}
    for name, changes in TECHNIQUES:
        options.update(changes)
        if name == label:
            break
    return options


def _shape(cells: dict[str, str]) -> ModelShape:
    layers, hidden, heads = whole(cells, "n_layers", most=MAX_LAYERS), whole(cells, "hidden"), whole(cells, "n_heads")
    gated = number(cells, "gated_mlp") != 0.0
    experts = whole(cells, "moe_experts", 0, least=0)
    head_dim = whole(cells, "head_dim", hidden // heads)
    ffn = whole(cells, "ffn_hidden", 0) or (4 * hidden if not gated else 0)
    first_dense = whole(cells, "dense_first_layers", 0, least=0)
    latent = "deepseek" in cells.get("model", "").lower() and head_dim == 192
    spec = ModelSpec(
        name=cells.get("model", "") or cells["id"],
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=whole(cells, "n_kv_heads", heads),
        head_dim=head_dim,
        value_head_dim=128 if latent else head_dim,
        ffn_hidden=ffn,
        vocab=whole(cells, "vocab"),
        gated_mlp=gated,
        tied_embeddings=number(cells, "tied_embeddings") == 1.0,
        learned_positions=0 if gated else whole(cells, "seq_len"),
        norm="rms" if gated else "layer",
        qkv_bias=not gated,
        out_bias=not gated,
        mlp_bias=not gated,
        mla=latent,
        q_lora_rank=1536 if latent else 0,
        kv_lora_rank=512 if latent else 0,
        rope_head_dim=64 if latent else 0,
        experts=experts,
        top_k=whole(cells, "moe_topk", 0, least=0) if experts else 0,
        moe_ffn_hidden=(whole(cells, "moe_ffn", 0, least=0) or ffn) if experts else 0,
        shared_ffn_hidden=whole(cells, "moe_shared_ffn", 0, least=0) if experts else 0,
        moe_layer=tuple(i >= first_dense for i in range(layers)) if experts else (),
    )
    return spec.lower()


def _adapters(cells: dict[str, str], options: dict[str, object]) -> Adapters | None:
    task = cells.get("task", "")
    rank = options.pop("lora", 8 if task in ("lora-finetune", "qlora-finetune") else None)
    nf4 = bool(options.pop("nf4", False)) or task.startswith("qlora")
    if rank is None:
        return None
    return Adapters(int(str(rank)), ADAPTER_TARGETS, NF4_BYTES if nf4 else 2.0)


def _zero(text: str) -> tuple[int, bool]:
    """ZeRO stage and whether gathered weights are freed after forward."""
    if text.startswith(("fsdp-shard-grad-op", "shard_grad_op")):
        return 3, False
    if text.startswith(("fsdp", "hsdp", "zero3", "megatron-fsdp")):
        return 3, True
    if text.startswith("zero2"):
        return 2, True
    if text.startswith(("zero1", "distributed-optimizer")):
        return 1, True
    return 0, True


def _expert_tensor(cells: dict[str, str], notes: str, stage: int) -> int:
    """Ranks that share an expert: as printed, else as the source's table says, else one."""
    stated = re.search(r"\betp ?=? ?(\d{1,4})\b", notes.lower())
    degree = int(stated.group(1)) if stated else whole(cells, "tp", 1) if cells.get("etp") == "tp" else 1
    return degree if stage % (degree * whole(cells, "ep", 1)) == 0 else 1


def _layout(
    cells: dict[str, str], stack: str, notes: str, options: dict[str, object], adapted: bool, meaning: Meaning
) -> LayoutSpec:
    tp, pp, cp = (whole(cells, name, 1) for name in ("tp", "pp", "cp"))
    gpus = whole(cells, "n_gpus")
    sharing = tp * pp * cp
    dp = whole(cells, "dp", gpus // sharing)
    if gpus % sharing:
        raise UnusableRowError(f"n_gpus {gpus} is no multiple of tp * pp * cp = {sharing}")
    if sharing * dp != gpus:
        raise UnusableRowError(f"tp * pp * cp * dp = {sharing * dp} is not n_gpus {gpus}")
    vpp, ep = whole(cells, "vpp", 1), whole(cells, "ep", 1)
    micro, accum, batch = (
        number(cells, name, above=0.0, most=LARGEST) for name in ("micro_batch", "grad_accum", "global_batch")
    )
    if micro is None:
        if batch is None:
            raise UnusableRowError("micro_batch not stated")
        micro = batch / (dp * (accum or 1.0))
    if accum is None:
        accum = batch / (dp * micro) if batch else float(meaning.grad_accum or pp)
    micro_batch, grad_accum = max(1, round(micro)), max(1, round(accum))
    choice = stack_choice(stack)
    precision = cells.get("precision", "") or meaning.precision
    if not precision:
        precision = "fp16" if cells.get("gpu", "").upper().startswith("V100") else "bf16"
    precision = precision if precision in choice.recipe else "fp8"
    stage, reshard = _zero(cells.get("zero_or_fsdp", "").lower())
    words = cells.get("zero_or_fsdp", "").lower()
    shard = dp
    stated = re.search(r"sharded over (\d{1,9})|shard=(\d{1,9})", words)
    if stated:
        shard = max(1, min(dp, int(stated.group(1) or stated.group(2))))
    parallel = number(cells, "sequence_parallel")
    flash = number(cells, "flash_attention")
    lowered = notes.lower()
    schedule = next((name for word, name in SCHEDULE_WORDS if word in lowered), "interleaved" if vpp > 1 else "1f1b")
    recompute = cells.get("recompute", "").lower() or meaning.recompute
    offload = options.get("offload", ())
    if cells.get("cpu_offload", "") in ("optimizer", "parameters"):
        offload = ("optimizer",) if cells["cpu_offload"] == "optimizer" else ("optimizer", "parameters")
    seq_len = whole(cells, "seq_len")
    return LayoutSpec(
        gpus=tp * pp * cp * dp,
        dp=dp,
        dp_replicate=dp // shard,
        dp_shard=shard,
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        ep=ep,
        etp=_expert_tensor(cells, notes, gpus // pp),
        zero=stage,
        schedule=schedule,
        sequence_parallel=choice.sequence_parallel and tp > 1 if parallel is None else parallel > 0,
        cp_comm="ring",
        reshard=reshard,
        no_sync=False,
        seq_len=seq_len,
        micro_batch=micro_batch,
        grad_accum=grad_accum,
        global_batch=micro_batch * grad_accum * dp,
        tokens_per_rank=micro_batch * grad_accum * seq_len,
        recompute="full"
        if recompute.startswith("full")
        else "selective"
        if recompute.startswith("selective")
        else "none",
        recompute_layers=None,
        precision=precision,
        stack=stack,
        recipe=recipe_for(stack, precision),
        optimizer=str(options.get("optimizer", "muon" if "optimizer muon" in lowered else "adamw")),
        attention=choice.attention if flash is None else "flash" if flash > 0 else "unfused",
        loss=str(options.get("loss", choice.loss)),
        capacity_factor=1.0,
        offload=tuple(str(o) for o in offload) if isinstance(offload, tuple) else (),
        optimizer_in_backward=bool(options.get("optimizer_in_backward", False)) and not adapted,
    )
