"""The sizes that a small model has, by the names that configurations use."""

from __future__ import annotations

HIDDEN = 64
HEADS = 4
KV_HEADS = 2
HEAD = 16
FEED_FORWARD = 96
EXPERTS = 4
VOCABULARY = 128
POSITIONS = 64
WINDOW = 8

_GROUPS = [
    (
        "hidden_size d_model n_embd word_embed_proj_dim embedding_size input_embedding_size "
        "output_embedding_size attention_hidden_size lru_width backbone_hidden_size out_hidden_size "
        "vision_output_dim projector_input_dim projector_output_dim adapter_in_dim adapter_out_dim "
        "adapter_input_size",
        HIDDEN,
    ),
    (
        "num_attention_heads n_head n_heads num_heads attention_heads encoder_attention_heads "
        "decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads "
        "swa_num_attention_heads linear_num_value_heads linear_num_heads index_n_heads mamba_n_heads "
        "mamba_num_heads n_mamba_heads",
        HEADS,
    ),
    ("num_global_key_value_heads linear_num_key_heads mamba_n_groups n_groups", KV_HEADS),
    (
        "head_dim global_head_dim swa_head_dim v_head_dim qk_nope_head_dim linear_key_head_dim "
        "linear_value_head_dim linear_head_dim index_head_dim attention_head_dim attention_head_size "
        "dim_head kv_channels d_kv kv_lora_rank o_lora_rank",
        HEAD,
    ),
    ("qk_rope_head_dim rotary_dim", HEAD // 2),
    ("qk_head_dim q_lora_rank", HEAD + HEAD // 2),
    (
        "intermediate_size n_inner ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff dim_ff dff "
        "ffn_hidden_size intermediate_size_mlp dense_intermediate_size feed_forward_size mlp_dim d_inner",
        FEED_FORWARD,
    ),
    (
        "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size "
        "moe_shared_expert_intermediate_size shared_experts_intermediate_size expert_ffn_hidden_size",
        32,
    ),
    ("num_experts num_local_experts n_routed_experts moe_num_experts zero_expert_num", EXPERTS),
    (
        "num_experts_per_tok num_experts_per_token moe_topk moe_top_k moe_k n_group num_expert_group "
        "encoder_layers decoder_layers num_encoder_layers num_decoder_layers depth",
        2,
    ),
    ("topk_group first_k_dense_replace num_dense_layers", 1),
    ("vocab_size vocab_size_per_layer_input unpadded_vocab_size decoder_vocab_size", VOCABULARY),
    (
        "max_position_embeddings n_positions n_ctx max_seq_len model_max_length max_source_positions "
        "max_target_positions",
        POSITIONS,
    ),
    (
        "sliding_window sliding_window_size window_size attention_window_size attention_chunk_size "
        "local_attention local_attention_window_len keep_window_size index_topk",
        WINDOW,
    ),
    ("state_size ssm_state_size mamba_d_state hidden_size_per_layer_input", 16),
]

#: Size by the name of a field.
SIZES: dict[str, int] = {name: size for names, size in _GROUPS for name in names.split()}

#: What the rules cannot know: sizes that depend on each other, and defaults that describe no working model.
BY_TYPE: dict[str, dict] = {
    "bamba": {"attn_layer_indices": [1], "mamba_d_head": 32},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"], "mamba_d_head": 32},
    "mamba2": {"head_dim": 32},
    "bailing_hybrid": {"num_experts": EXPERTS, "num_experts_per_token": 2, "num_expert_group": 2, "topk_group": 1},
    "kolibri1": {"num_experts": EXPERTS},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "phi4_multimodal_audio": {
        "num_blocks": 1,
        "ext_pw_out_channel": HIDDEN,
        "depthwise_separable_out_channel": HIDDEN,
        "nemo_conv_channels": HIDDEN,
    },
    "blt": {"encoder_hash_byte_group_vocab": HIDDEN, "num_hidden_layers": 2},
    "blt_local_encoder": {"hidden_size_global": HIDDEN},
    "blt_local_decoder": {"hidden_size_global": HIDDEN},
    "musicgen_decoder": {"num_codebooks": 2},
    "musicgen_melody_decoder": {"num_codebooks": 2},
    "dbrx": {
        "attn_config": {"kv_n_heads": KV_HEADS, "clip_qkv": 8, "rope_theta": 1e4},
        "ffn_config": {
            "hidden_size": HIDDEN,
            "ffn_hidden_size": FEED_FORWARD,
            "moe_num_experts": EXPERTS,
            "moe_top_k": 2,
        },
    },
    "dots3_note_text": {
        "swa_num_attention_heads": HEADS,
        "swa_num_key_value_heads": HEADS,
        "swa_head_dim": HEAD + HEAD // 2,
        "swa_qk_nope_head_dim": HEAD,
        "swa_qk_rope_head_dim": HEAD // 2,
        "swa_v_head_dim": HEAD,
        "swa_q_lora_rank": HEAD + HEAD // 2,
        "swa_kv_lora_rank": HEAD,
    },
    "jamba": {"num_hidden_layers": 3, "attn_layer_period": 4, "attn_layer_offset": 2},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 32},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 2 * HIDDEN,
        "attention_head_dim": 2 * HEAD,
    },
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("sliding_attention", "full_attention")
        },
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "dots1": {"n_routed_experts": EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "nemotron": {"num_key_value_heads": KV_HEADS},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "intermediate_size": [FEED_FORWARD] * 4,
        "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
    },
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": HEAD,
        "indexer_budget": WINDOW,
        "indexer_compress_ratio": 2,
    },
    "reformer": {
        "attn_layers": ["local", "lsh"],
        "axial_pos_shape": [8, 8],
        "axial_pos_embds_dim": [16, 48],
        "local_attn_chunk_length": 16,
        "lsh_attn_chunk_length": 16,
        "num_buckets": 4,
        "hash_seed": 1,
    },
    "roc_bert": {
        "pronunciation_vocab_size": 16,
        "pronunciation_embed_dim": 16,
        "shape_vocab_size": 16,
        "shape_embed_dim": 16,
    },
    "xlm": {"emb_dim": HIDDEN},
    "xlstm": {"hidden_size": 2 * HIDDEN, "embedding_dim": 2 * HIDDEN},
    "xmod": {"default_language": "en_XX"},
}
