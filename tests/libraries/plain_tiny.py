"""A tiny Qwen3, a tokenizer and a data set, made on the spot: no downloads, no import of this project."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "A compiler turns a graph into a program for a chip.",
    "Tensors of one shape share one graph, and a new shape needs a new one.",
    "Every rank holds a part of the weights and sends the rest of its work to the others.",
    "Padding makes the prompt longer and the list of graphs shorter.",
]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of about 300 pieces, trained on the sentences above."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left", model_max_length=512
    )


def make_model(vocabulary: int = 320, seed: int = 0) -> Qwen3ForCausalLM:
    """Two layers of Qwen3 with random weights on the CPU, the same for the same seed."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.15,  # at the usual 0.02 so small a model says the same token for ever
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval()


def make_dataset(count: int = 64):
    """Texts of one to three sentences in a fixed order."""
    from datasets import Dataset

    texts = []
    for index in range(count):
        parts = [SENTENCES[(index + 2 * step) % len(SENTENCES)] for step in range(1 + index % 3)]
        texts.append(" ".join(parts))
    return Dataset.from_dict({"text": texts})


if __name__ == "__main__":
    import sys

    make_model().save_pretrained(sys.argv[1])
    make_tokenizer().save_pretrained(sys.argv[1])
