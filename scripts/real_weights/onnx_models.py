"""Exported models as folders of transformers: BERT, DistilBERT, T5."""

from __future__ import annotations

import json
from pathlib import Path

import transformers
from tokenizers import Tokenizer

from real_weights.onnx_files import fill, load, weights_of


def bert(graph: bytes, target: Path, *, config: bytes, beside: Path | None = None) -> None:
    """A BertModel without pooler; the tokenizer is the caller's."""
    sizes = {name: value for name, value in json.loads(config).items() if name not in ("architectures", "model_type")}
    model = transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False)
    fill(model, weights_of(load(graph), beside))
    model.save_pretrained(target)


def distilbert(graph: bytes, tokenizer: bytes, target: Path) -> None:
    """A DistilBertModel."""
    weights = {name.removeprefix("distilbert."): weight for name, weight in weights_of(load(graph)).items()}
    words = len(weights["embeddings.word_embeddings.weight"])
    model = transformers.DistilBertModel(transformers.DistilBertConfig(vocab_size=words))
    fill(model, weights)
    model.save_pretrained(target)
    _tokenizer(tokenizer, target, pad="[PAD]", cls="[CLS]", sep="[SEP]", unk="[UNK]", mask="[MASK]")


def t5(encoder: bytes, decoder: bytes, tokenizer: bytes, target: Path) -> None:
    """A T5 with gated layers, of flan-t5-small's shape, without its head, which the library would tie to the input."""
    weights = {f"encoder.{name.removeprefix('enc.')}": weight for name, weight in weights_of(load(encoder)).items()}
    weights |= {name.removeprefix("m."): weight for name, weight in weights_of(load(decoder)).items()}
    weights["decoder.embed_tokens.weight"] = weights["shared.weight"]
    config = transformers.T5Config(
        vocab_size=len(weights["shared.weight"]),
        d_model=512,
        d_ff=len(weights["encoder.block.0.layer.1.DenseReluDense.wi_0.weight"]),
        d_kv=64,
        num_heads=weights["encoder.block.0.layer.0.SelfAttention.q.weight"].shape[0] // 64,
        num_layers=8,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
    )
    model = transformers.T5Model(config)
    fill(model, weights)
    model.save_pretrained(target)
    _tokenizer(tokenizer, target, pad="<pad>", eos="</s>", unk="<unk>")


def _tokenizer(written: bytes, target: Path, **special: str) -> None:
    names = {f"{name}_token": token for name, token in special.items()}
    made = Tokenizer.from_str(written.decode())
    made.no_padding()
    made.no_truncation()
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=512, **names).save_pretrained(target)
