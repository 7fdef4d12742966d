"""Makes any causal language model of transformers small, without changing its kind.

A configuration is rebuilt from its own defaults: every kind of layer stays, once,
in the order of its first appearance; heads, experts, groups and ranks stay but
are few; what is off by default stays off. Weights are random with a fixed seed,
and nothing is read from the network. What is left to others: running the models
(``survey.py``).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import transformers
from small_sizes import BY_TYPE, HEADS, KV_HEADS, SIZES, VOCABULARY
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

#: Above this many parameters a size was overlooked.
TOO_MANY = 4_000_000

#: Every model type that transformers maps to a causal language model.
MODEL_TYPES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

#: Fields that name the layers of one kind by their positions.
_INDEX_LISTS = ("full_attn_idxs", "moe_layers", "mlp_only_layers", "cross_attention_layers")
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def _layers(config: PreTrainedConfig) -> tuple[str | None, int]:
    """Name of the field with the number of layers, and its value."""
    for name in _LAYER_COUNTS:
        if isinstance(vars(config).get(name), int):
            return name, vars(config)[name]
    return None, 0


def _chosen_layers(config: PreTrainedConfig, count: int) -> list[int]:
    """Indices of the layers to keep: the first of every kind, and two at least."""
    lists = [
        value
        for name, value in vars(config).items()
        if isinstance(value, list | tuple) and len(value) == count and name not in _INDEX_LISTS
    ]
    lists += [
        [index in value for index in range(count)]
        for name, value in vars(config).items()
        if name in _INDEX_LISTS and value is not None
    ]
    seen: dict[str, int] = {}
    for index in range(count):
        seen.setdefault(str([values[index] for values in lists]), index)
    chosen = sorted(seen.values())
    return chosen if len(chosen) > 1 or count < 2 else [*chosen, *(i for i in range(count) if i not in chosen)][:2]


def _small_layers(config: PreTrainedConfig) -> dict[str, Any]:
    name, count = _layers(config)
    lists = {
        key: value
        for key, value in vars(config).items()
        if key in ("layer_types", "layers_block_type") and isinstance(value, list | tuple)
    }
    if count == 0 and lists:
        count = len(next(iter(lists.values())))
    if count < 2:
        return {}
    chosen = _chosen_layers(config, count)
    changes: dict[str, Any] = {name: len(chosen)} if name else {}
    for key, value in vars(config).items():
        if key in _INDEX_LISTS and value is not None:
            changes[key] = [position for position, index in enumerate(chosen) if index in value]
        elif isinstance(value, list | tuple) and len(value) == count:
            changes[key] = [value[index] for index in chosen]
    return changes


def _small_heads(value: int, old: dict[str, Any]) -> int:
    """Few key and value heads, in the same relation to the query heads: all, some or one."""
    queries = next((old[key] for key in ("num_attention_heads", "n_heads", "swa_num_attention_heads") if key in old), 0)
    return HEADS if value == queries else min(value, KV_HEADS)


def _small_rope(value: Any, head_dim: int) -> Any:
    """Rotary parameters for short heads and short texts: sections keep their proportions."""
    if not isinstance(value, dict):
        return value
    if any(isinstance(part, dict) for part in value.values()):
        return {key: _small_rope(part, head_dim) for key, part in value.items()}
    small = dict(value)
    if "original_max_position_embeddings" in small:
        small["original_max_position_embeddings"] = 16
    section = small.get("mrope_section")
    if section:
        half = head_dim // 2
        parts = [max(1, half * part // sum(section)) for part in section]
        small["mrope_section"] = [parts[0] + half - sum(parts), *parts[1:]]
    for key in ("short_factor", "long_factor"):
        if small.get(key):
            small[key] = small[key][: head_dim // 2]
    return small


def shrink(config: PreTrainedConfig) -> PreTrainedConfig:
    """Make a small configuration of the same kind.

    Parameters
    ----------
    config
        The configuration with its defaults; nested ones are made small too.
    """
    old = dict(vars(config))
    fields = {field.name for field in dataclasses.fields(config)}
    changes: dict[str, Any] = {}
    for name in sorted(fields):
        value = old.get(name)
        if isinstance(value, PreTrainedConfig):
            changes[name] = shrink(value)
        elif name.endswith("_token_id") and isinstance(value, int | list):
            pass  # set below: they have to lie in the vocabulary
        elif name == "head_dim" and value is None:
            changes[name] = SIZES["head_dim"]  # some classes divide by None
        elif isinstance(value, bool) or value is None or isinstance(value, list | tuple):
            continue
        elif name.endswith(
            ("dropout", "pdrop", "dropout_prob", "dropout_rate", "dropout_p", "layerdrop", "jitter_noise")
        ):
            changes[name] = type(value)(0)
        elif name in ("num_key_value_heads", "num_kv_heads", "kv_n_heads", "swa_num_key_value_heads"):
            changes[name] = _small_heads(value, old)
        elif name in SIZES and isinstance(value, int) and value > 1:
            changes[name] = min(value, SIZES[name])
        elif name in ("initializer_range", "init_std") and value:
            changes[name] = 0.15  # of a normal layer of this width: differences between tokens survive
    if "is_decoder" in fields and not old.get("is_encoder_decoder"):
        changes["is_decoder"] = True  # an encoder's class is a language model only as a decoder
    if "head_dim" in changes and "qk_rope_head_dim" in old and old["head_dim"] in (None, old["qk_rope_head_dim"]):
        changes["head_dim"] = SIZES["qk_rope_head_dim"]
    changes |= {key: value for key, value in _small_layers(config).items() if key in fields}
    if old.get("rope_parameters"):
        changes["rope_parameters"] = _small_rope(old["rope_parameters"], changes.get("head_dim", 16))
    changes |= BY_TYPE.get(config.model_type, {})
    usual = vars(type(config)())
    for name in fields & set(usual):  # what a composed model asks of its part, against the part's own default
        if name not in changes and old.get(name) != usual[name]:
            changes[name] = old[name]
    made = type(config)(**changes)
    for name, value in vars(made).items():  # what __post_init__ filled in from the class
        if name.endswith("_token_id") and value is not None:
            setattr(made, name, None if name == "eos_token_id" else min(_first(value), VOCABULARY - 1))
    return made


def _first(value: Any) -> int:
    return value[0] if isinstance(value, list | tuple) else value


def small_config(model_type: str) -> PreTrainedConfig:
    """The small configuration of a model type; `KeyError` for a type that does not exist."""
    config = shrink(CONFIG_MAPPING[model_type]())
    # The language model of a composed one is made from the decoder's configuration alone.
    return config.decoder if model_type.startswith("musicgen") else config


def _build(model_type: str, config: PreTrainedConfig) -> torch.nn.Module:
    if model_type.startswith("musicgen"):
        model_class = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])
        return model_class._from_config(config, dtype=torch.float32)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def small_model(model_type: str, seed: int = 0) -> torch.nn.Module:
    """A small random model on the CPU, in float32 and evaluation mode.

    Raises
    ------
    ValueError
        If the model came out large: a size of its configuration is not known here.
    """
    config = small_config(model_type)
    with torch.device("meta"):
        count = sum(weight.numel() for weight in _build(model_type, config).parameters())
    if count > TOO_MANY:
        raise ValueError(f"{model_type} still has {count:,} parameters: {config.to_diff_dict()}")
    torch.manual_seed(seed)
    model = _build(model_type, small_config(model_type)).eval()
    with torch.no_grad():  # biases of zero and norms of one would hide a mistake in them
        for weight in model.parameters():
            weight += 0.05 * torch.randn_like(weight)
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        generation.eos_token_id = None  # texts of one length: no early end by chance
        generation.forced_eos_token_id = None
        generation.pad_token_id = 0
        generation.decoder_start_token_id = 1  # Musicgen begins with it although it has no encoder here,
        generation.num_return_sequences = 1  # and fills in no default of its own
    return model
