"""What several tests of the commands draw from: a small model's configuration, and layouts sane and wild."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from dscalc.specs.option_table import OPTIONS

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
DEGREE = st.sampled_from([1, 1, 1, 2, 3, 4, 8, 16])
LAYOUT: dict[str, st.SearchStrategy[Any]] = {
    "tp": DEGREE,
    "pp": DEGREE,
    "cp": DEGREE,
    "dp": DEGREE,
    "ep": DEGREE,
    "etp": DEGREE,
    "vpp": st.sampled_from([1, 2, 4]),
    "gpus": st.sampled_from([1, 8, 64, 10**9]),
    "dp_shard": DEGREE,
    "dp_replicate": DEGREE,
    "zero": st.integers(0, 3),
    "schedule": st.sampled_from(OPTIONS["schedule"].choices),
    "sequence_parallel": st.booleans(),
    "cp_comm": st.sampled_from(OPTIONS["cp_comm"].choices),
    "reshard": st.booleans(),
    "no_sync": st.booleans(),
    "seq_len": st.sampled_from([1, 7, 512, "8k", 10**9]),
    "micro_batch": st.sampled_from([1, 2, 3, 10**9]),
    "grad_accum": st.sampled_from([1, 2, 8, 64]),
    "global_batch": st.sampled_from([1, 16, 1024]),
    "recompute": st.sampled_from(OPTIONS["recompute"].choices),
    "recompute_layers": st.sampled_from([1, 2, 1000]),
    "stack": st.sampled_from(["generic", "megatron", "fsdp2", "nanotron", "deepspeed", "torchtune"]),
    "capacity_factor": st.sampled_from([0.5, 1.0, 2.0, 1e9]),
    "lora_rank": st.sampled_from([1, 16, 10**9]),
    "base_precision": st.sampled_from(["bf16", "nf4"]),
}
