"""The option table: every shared option once, with its spellings and what it accepts.

Nothing heavy is imported here: the table serves ``--help``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from dscalc.codes import (
    ATTENTIONS,
    BATCH_LAWS,
    CP_COMMS,
    LR_RULES,
    OFFLOADS,
    OVERLAPS,
    RANK_ORDERS,
    RECOMPUTES,
    SCHEDULES,
)
from dscalc.frozen import dataclass

Kind = Literal[
    "whole",
    "length",
    "number",
    "fraction",
    "choice",
    "switch",
    "flag",
    "text",
    "path",
    "rate",
    "flop_rate",
    "time",
    "names",
    "span",
]

LARGEST = 10**9  # of any degree, batch, length or shape number
SMALLEST_PARAMS = 1000
LARGEST_PARAMS = 10**15
LARGEST_LAYERS = 100_000  # as many as a config.json may have
LARGEST_TOKENS = 10**17
LARGEST_TRACE = 16  # ranks of a ring that is shown step by step

PRECISIONS = ("bf16", "fp16", "fp8", "fp32")
BASE_PRECISIONS = ("bf16", "nf4")
FORMATS = ("table", "json", "csv", "markdown")
GROUPS = ("model", "hardware", "layout", "training", "output")


@dataclass(frozen=True, slots=True)
class Option:
    """One option: canonical name, where it belongs, how it is read.

    Attributes:
        name: canonical name with underscores; ``--tp`` and ``tp=`` are the same word.
        group: one of ``GROUPS``.
        kind: how a value is read, see ``parse``.
        help: one phrase; degrees take theirs from the axis table.
        aliases: other spellings, as other frameworks write them.
        choices: accepted words of a ``choice`` or ``names``.
        catalog: ``recipes``, ``stacks``, ``optimizers`` or ``losses`` where the words ship in a data file.
        metavar: what ``--help`` shows for the value.
        minimum, maximum: range of a whole number.
        least: smallest value of a number or a time, in base units; None: any that its kind allows.
        uses: what the option bears on: ``memory``, ``time`` (or both), or the commands ``comm``, ``step``, ``batch``.
        many: it takes lists and ranges, as a sweep does; see ``specs.spans``.
    """

    name: str
    group: str
    kind: Kind
    help: str = ""
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    catalog: str = ""
    metavar: str = ""
    minimum: int = 1
    maximum: int = LARGEST
    least: float | None = None
    uses: str = "memory time"
    many: bool = False

    @property
    def flag(self) -> str:
        """The canonical spelling on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def flags(self) -> tuple[str, ...]:
        """Every spelling on the command line, the canonical one first."""
        return (self.flag, *("--" + alias.replace("_", "-") for alias in self.aliases))


def _degree(name: str, *aliases: str, minimum: int = 1) -> Option:
    return Option(name, "layout", "whole", "", aliases, metavar="N", minimum=minimum)


def _shape(name: str, text: str, *aliases: str, minimum: int = 1, maximum: int = LARGEST) -> Option:
    return Option(name, "model", "whole", text, aliases, metavar="N", minimum=minimum, maximum=maximum)


def _batch(
    name: str,
    kind: Kind,
    text: str,
    metavar: str = "",
    *aliases: str,
    choices: tuple[str, ...] = (),
    maximum: int = LARGEST,
) -> Option:
    return Option(name, "training", kind, text, aliases, choices, "", metavar, maximum=maximum, uses="batch")


TABLE: tuple[Option, ...] = (
    # ------------------------------------------------------------------------------------------------------ model
    Option(
        "params",
        "model",
        "whole",
        "Parameters, e.g. 7B or 7e9; alone, a typical shape of that size is assumed.",
        metavar="N",
        minimum=SMALLEST_PARAMS,
        maximum=LARGEST_PARAMS,
    ),
    Option(
        "model",
        "model",
        "text",
        "A shipped model's name, a Hugging Face config.json, or its folder.",
        ("model_name", "model_name_or_path"),
        metavar="NAME|FILE",
    ),
    _shape("layers", "Transformer layers.", "num_layers", "num_hidden_layers", maximum=LARGEST_LAYERS),
    _shape("hidden", "Hidden width.", "hidden_size"),
    _shape("heads", "Attention heads.", "num_attention_heads"),
    _shape("kv_heads", "Key/value heads (grouped-query attention).", "num_query_groups", "num_key_value_heads"),
    _shape("head_dim", "Width of one head.", "kv_channels"),
    _shape("ffn_hidden", "Width of the MLP.", "ffn_hidden_size", "intermediate_size"),
    _shape("vocab", "Vocabulary rows.", "vocab_size"),
    Option("gated_mlp", "model", "switch", "MLP with a gate (SwiGLU: three matrices) or without (two)."),
    Option("tie_embeddings", "model", "switch", "Output head shares the input embedding or not."),
    _shape("experts", "Experts in each MoE layer; 0: none.", "num_experts", minimum=0),
    _shape("top_k", "Experts a token is routed to.", "moe_router_topk", "num_experts_per_tok", minimum=0),
    _shape("moe_ffn_hidden", "Width of one expert.", "moe_ffn_hidden_size", "moe_intermediate_size"),
    _shape("shared_experts", "Experts that every token uses.", "n_shared_experts", minimum=0),
    Option(
        "seq_len",
        "model",
        "length",
        "Tokens in a sequence; k is 1024 here.",
        ("seq", "seq_length", "sequence_length", "max_seq_len"),
        metavar="TOKENS",
    ),
    Option(
        "lora_rank",
        "model",
        "whole",
        "Train low-rank adapters of this rank on a frozen base.",
        ("lora_r",),
        metavar="N",
    ),
    Option(
        "lora_targets",
        "model",
        "names",
        "Matrices that get an adapter, e.g. q_proj,v_proj; default: every linear layer.",
        ("lora_target_modules",),
        metavar="NAMES",
    ),
    Option("base_precision", "model", "choice", "What the frozen base is stored in.", choices=BASE_PRECISIONS),
    # --------------------------------------------------------------------------------------------------- hardware
    Option("gpu", "hardware", "text", "GPU by id; `dscalc list gpus` shows what ships.", metavar="ID"),
    Option("cluster", "hardware", "text", "Cluster by id: GPU, node and network together.", metavar="ID"),
    Option("gpus", "hardware", "whole", "GPUs in the whole job.", ("world_size", "num_gpus"), metavar="N"),
    Option("gpus_per_node", "hardware", "whole", "GPUs in one node.", ("nproc_per_node",), metavar="N"),
    Option("nodes", "hardware", "whole", "Nodes in the whole job.", ("nnodes", "num_nodes"), metavar="N"),
    Option(
        "interconnect",
        "hardware",
        "text",
        'Network between nodes: an id or a rate such as "400Gb/s".',
        metavar="ID|RATE",
        uses="time",
    ),
    Option(
        "profile",
        "hardware",
        "path",
        "Hardware profile (JSON) of a GPU or a cluster.",
        metavar="FILE",
    ),
    Option(
        "flops", "hardware", "flop_rate", "Effective compute rate of one GPU, e.g. 400TF.", metavar="RATE", uses="time"
    ),
    Option(
        "peak_fraction",
        "hardware",
        "fraction",
        "Share of the datasheet peak that is sustained.",
        metavar="X",
        uses="time",
    ),
    Option(
        "bandwidth",
        "hardware",
        "rate",
        "Effective bandwidth of one GPU, one direction, e.g. 50GB/s.",
        metavar="RATE",
        uses="time",
    ),
    Option(
        "latency", "hardware", "time", "Latency of one step of a collective, e.g. 5us.", metavar="TIME", uses="time"
    ),
    Option(
        "algorithm",
        "hardware",
        "names",
        "Algorithm of a collective, e.g. all-reduce=ring (repeat); default: the fastest.",
        metavar="OP=NAME",
        uses="comm",
    ),
    Option(
        "trace_ring",
        "hardware",
        "whole",
        "Also move a small tensor around a ring of K ranks, step by step.",
        metavar="K",
        maximum=LARGEST_TRACE,
        uses="comm",
    ),
    # ----------------------------------------------------------------------------------------------------- layout
    _degree("dp", "data_parallel_size", "workers"),
    _degree("dp_replicate", "data_parallel_replicate_degree", "num_distributed_optimizer_instances"),
    _degree("dp_shard", "data_parallel_shard_degree"),
    _degree("tp", "tensor_model_parallel_size", "tensor_parallel_size", "tensor_parallel_degree"),
    _degree("pp", "pipeline_model_parallel_size", "pipeline_parallel_size", "pipeline_parallel_degree"),
    _degree("vpp", "virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"),
    _degree("cp", "context_parallel_size", "context_parallel_degree"),
    _degree("ep", "expert_model_parallel_size", "expert_parallel_size", "expert_parallel_degree"),
    _degree("etp", "expert_tensor_parallel_size", "expert_tensor_parallel_degree"),
    Option("zero", "layout", "choice", "", ("zero_stage",), choices=("0", "1", "2", "3")),
    Option("schedule", "layout", "choice", "Pipeline schedule.", ("pipeline_parallel_schedule",), choices=SCHEDULES),
    Option("sequence_parallel", "layout", "switch"),
    Option(
        "cp_comm",
        "layout",
        "choice",
        "How context parallelism moves keys and values.",
        ("cp_comm_type",),
        choices=CP_COMMS,
    ),
    Option(
        "rank_order",
        "layout",
        "choice",
        "Which axes lie on neighbouring ranks, innermost first.",
        choices=RANK_ORDERS,
        uses="time",
    ),
    Option(
        "reshard",
        "layout",
        "switch",
        "ZeRO-3 frees gathered weights after forward, or keeps them.",
        ("reshard_after_forward",),
    ),
    Option("no_sync", "layout", "flag", "Reduce gradients once a step and hold them unsharded until then."),
    # --------------------------------------------------------------------------------------------------- training
    Option(
        "micro_batch",
        "training",
        "whole",
        "Sequences in one forward pass of a data-parallel rank.",
        (
            "mbs",
            "micro_batch_size",
            "per_device_train_batch_size",
            "train_micro_batch_size_per_gpu",
            "local_batch_size",
            "local_batch",
        ),
        metavar="N",
    ),
    Option(
        "global_batch",
        "training",
        "whole",
        "Sequences in one optimizer step.",
        ("gbs", "global_batch_size"),
        metavar="N",
    ),
    Option(
        "grad_accum",
        "training",
        "whole",
        "Micro-batches in one step of a data-parallel rank.",
        ("ga", "gradient_accumulation_steps", "batch_accumulation_per_replica"),
        metavar="N",
    ),
    Option(
        "tokens_per_rank",
        "training",
        "length",
        "Tokens of one data-parallel rank in a step; k is 1024 here.",
        metavar="TOKENS",
    ),
    Option(
        "recompute",
        "training",
        "choice",
        "Activation checkpointing.",
        ("recompute_granularity",),
        choices=RECOMPUTES,
    ),
    Option(
        "recompute_layers",
        "training",
        "whole",
        "Recompute only this many layers of each stage in full.",
        ("recompute_num_layers",),
        metavar="N",
    ),
    Option("precision", "training", "choice", "What the matrix products run in.", choices=PRECISIONS),
    Option("recipe", "training", "choice", "Bytes kept for each parameter.", catalog="recipes"),
    Option(
        "stack",
        "training",
        "choice",
        "Framework: sets recipe, loss, kernels and what stays in memory.",
        ("framework",),
        catalog="stacks",
    ),
    Option("optimizer", "training", "choice", "Optimizer, for its states.", ("optim",), catalog="optimizers"),
    Option("attention", "training", "choice", "Attention kernel.", ("attn_implementation",), choices=ATTENTIONS),
    Option("loss", "training", "choice", "How the loss treats the logits.", catalog="losses"),
    Option(
        "capacity_factor",
        "training",
        "number",
        "Tokens an expert may get, over its balanced share.",
        ("moe_expert_capacity_factor",),
        metavar="X",
    ),
    Option(
        "offload", "training", "names", "Keep on the host (repeat, or join with commas).", choices=("none", *OFFLOADS)
    ),
    Option("optimizer_in_backward", "training", "flag", "Step each parameter as soon as its gradient is ready."),
    Option(
        "gradient_bytes",
        "training",
        "number",
        "Bytes of one gradient on the wire: 2 for bf16, 4 for fp32.",
        metavar="BYTES",
        uses="time",
    ),
    Option(
        "overlap",
        "training",
        "names",
        "Axes whose communication hides behind computing, e.g. tp,dp; the others hide nothing [as the stack does].",
        choices=("none", *OVERLAPS),
        metavar="AXES",
        uses="comm step",
    ),
    Option(
        "jitter",
        "training",
        "fraction",
        "Spread of a step between GPUs, standard deviation as a share of it, e.g. 2%.",
        metavar="X",
        uses="step batch",
    ),
    _batch("base_batch", "whole", "Batch at which --base-lr was tuned, in sequences or images.", "N"),
    _batch("base_lr", "number", "Learning rate that was tuned at --base-batch.", "LR"),
    _batch("rule", "choice", "How the learning rate follows the batch [by the optimizer].", choices=LR_RULES),
    _batch("warmup", "span", "Length of warmup: 5epochs, 2000steps or none [by the rule].", "LENGTH"),
    _batch("beta1", "fraction", "Decay of Adam's first moment at --base-batch [0.9].", "X", "adam_beta1"),
    _batch("beta2", "fraction", "Decay of Adam's second moment at --base-batch [0.999].", "X", "adam_beta2"),
    _batch("eps", "number", "Adam's epsilon at --base-batch [1e-8].", "X", "adam_eps"),
    _batch("dataset_samples", "whole", "Sequences or images in one epoch.", "N", maximum=LARGEST_TOKENS),
    _batch("epochs", "number", "Epochs of the whole training.", "N"),
    _batch("tokens", "whole", "Tokens of the whole training, e.g. 2T.", "N", maximum=LARGEST_TOKENS),
    _batch("batch_law", "names", "Laws of the batch to ask [all that can answer].", choices=BATCH_LAWS),
    _batch("train_loss", "number", "Training loss in nats a token, for --batch-law kaplan.", "X"),
    _batch(
        "noise_scale",
        "whole",
        "Gradient noise scale that you measured, in tokens (in images without a sequence length).",
        "N",
        maximum=LARGEST_TOKENS,
    ),
    _batch("extra_data", "fraction", "Extra data accepted for a larger batch [20%].", "X"),
    _batch("slow_nodes", "fraction", "Share of slow nodes in the fleet [0.5%].", "X"),
    _batch("slow_by", "fraction", "How much slower those are [10%].", "X"),
    # ----------------------------------------------------------------------------------------------------- output
    Option("format", "output", "choice", "How the answer is written.", choices=FORMATS),
    Option("output", "output", "path", "Write to a file and not to the screen.", metavar="FILE"),
    Option("force", "output", "flag", "Replace an existing --output file."),
    Option("explain", "output", "flag", "Under each term: its formula, the numbers put in, the source."),
    Option("quiet", "output", "flag", "One line."),
    Option("check", "output", "flag", "Exit with 3 when the layout does not fit."),
)
OPTIONS: Mapping[str, Option] = {option.name: option for option in TABLE}

# Spellings of other frameworks that stand for one value of an option.
CONSTANTS: Mapping[str, tuple[str, object]] = {
    "fsdp": ("zero", 3),
    "use_distributed_optimizer": ("zero", 1),
    "use_tp_pp_dp_mapping": ("rank_order", "tp-cp-pp-dp"),
    "gradient_checkpointing": ("recompute", "full"),
    "activation_checkpointing": ("recompute", "full"),
    "recompute_activations": ("recompute", "selective"),
    "bf16": ("precision", "bf16"),
    "fp16": ("precision", "fp16"),
    "swiglu": ("gated_mlp", True),
    "untie_embeddings_and_output_weights": ("tie_embeddings", False),
    "use_flash_attn": ("attention", "flash"),
}
# Spellings that mean different things in different places.
REFUSED: Mapping[str, str] = {
    "train_batch_size": (
        "means all sequences of a step in DeepSpeed (write --global-batch) and the sequences of one GPU elsewhere "
        "(write --micro-batch)"
    ),
    "batch_size": "does not say of what: write --micro-batch (one forward pass) or --global-batch (one step)",
}
