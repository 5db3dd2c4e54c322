"""CharacterBERT gives the numbers of its authors' code, spells words as it does, and opens what they published."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.models.bert.modeling_bert import eager_attention_forward

from anisoscope.errors import InputError
from anisoscope.models.extra.characterbert import (
    CharacterBertConfig,
    CharacterBertForMaskedLM,
    CharacterBertModel,
    CharacterBertTokenizer,
    CharacterCnn,
    Highways,
    basic_words,
    spell,
)
from fixtures import recorded

TOLERANCE = 1e-5
FACTS = recorded.facts("character_bert_tiny")
CONFIG = FACTS["config"]
WORDS_IN_VOCABULARY = 30


def load(state: dict[str, Tensor] | None = None, **options: Any) -> CharacterBertModel:
    made = CharacterBertModel(CharacterBertConfig(**{**CONFIG, **options})).eval()
    made.load_state_dict(state or recorded.tensors("character_bert_tiny_state"))
    return made


@pytest.fixture
def model() -> CharacterBertModel:
    return load()


@pytest.fixture(scope="module")
def io() -> dict[str, Tensor]:
    return recorded.tensors("character_bert_tiny_io")


@pytest.fixture
def tokenizer() -> CharacterBertTokenizer:
    return CharacterBertTokenizer()


@torch.no_grad()
def outputs(model: CharacterBertModel, io: dict[str, Tensor]) -> dict[str, Tensor]:
    """All that was recorded: both sentences together, padded; the second alone; the words before the encoder."""
    ids = io["input_ids"]
    batch = model(ids, io["attention_mask"], io["token_type_ids"], output_hidden_states=True)
    single = model(ids[1:, :5], output_hidden_states=True)
    found = {"char_cnn_output": model.embeddings.word_embeddings(ids)}
    for name, output in (("batch", batch), ("single", single)):
        found |= {f"{name}.hidden_states.{index}": state for index, state in enumerate(output.hidden_states)}
        found[f"{name}.pooler_output"] = output.pooler_output
    return found | {"batch.last_hidden_state": batch.last_hidden_state}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_recorded_tensor_is_reproduced(model: CharacterBertModel, io: dict[str, Tensor], attention: str):
    model.set_attn_implementation(attention)
    assert recorded.furthest(outputs(model, io), recorded.outputs_of(io)) < TOLERANCE


def _swap_highway_halves(state: dict[str, Tensor]) -> None:
    for name in [name for name in state if "_highways" in name]:
        state[name] = torch.cat(state[name].chunk(2)[::-1])


def _reverse_gates(state: dict[str, Tensor]) -> None:
    for name in [name for name in state if "_highways" in name]:
        candidate, gate = state[name].chunk(2)
        state[name] = torch.cat([candidate, -gate])  # σ(−z) = 1 − σ(z)


@pytest.mark.parametrize(
    ("change", "options", "deviation"),
    [(_swap_highway_halves, {}, 2.2e1), (_reverse_gates, {}, 1.8e1), (None, {"hidden_act": "gelu_new"}, 2.1e-4)],
    ids=["highway halves swapped", "gate reversed", "tanh GELU"],
)
def test_the_recorded_numbers_would_show_a_mistake(
    io: dict[str, Tensor], change: Any, options: dict[str, str], deviation: float
):
    state = recorded.tensors("character_bert_tiny_state")
    if change:
        change(state)
    found = recorded.furthest(outputs(load(state, **options), io), recorded.outputs_of(io))
    assert found == pytest.approx(deviation, rel=0.05)


@torch.no_grad()
def test_hidden_states_begin_with_the_normalised_embeddings(model: CharacterBertModel, io: dict[str, Tensor]):
    found = model(io["input_ids"], output_hidden_states=True)
    assert len(found.hidden_states) == CONFIG["num_hidden_layers"] + 1
    assert torch.equal(found.hidden_states[0], model.embeddings(io["input_ids"], None))
    assert torch.equal(found.hidden_states[-1], found.last_hidden_state)
    assert model(io["input_ids"]).hidden_states is None
    model.set_attn_implementation("eager")
    attentions = model(io["input_ids"], io["attention_mask"], output_attentions=True).attentions
    assert [tuple(layer.shape) for layer in attentions] == [(2, 4, 10, 10)] * 3


@torch.no_grad()
def test_queries_and_keys_pass_through_the_attention_interface(model: CharacterBertModel, io: dict[str, Tensor]):
    seen: list[tuple[nn.Module, Tensor]] = []

    def probe(module: nn.Module, query: Tensor, key: Tensor, *rest: Any, **kwargs: Any) -> Any:
        seen.append((module, key))
        return eager_attention_forward(module, query, key, *rest, **kwargs)

    AttentionInterface.register("characterbert_probe", probe)
    AttentionMaskInterface.register("characterbert_probe", eager_mask)
    model.set_attn_implementation("characterbert_probe")
    assert recorded.furthest(outputs(model, io), recorded.outputs_of(io)) < TOLERANCE
    layers = [model.get_submodule(f"encoder.layer.{index}.attention.self") for index in range(3)]
    assert [module for module, _ in seen] == layers * 2
    assert seen[0][1].shape == (2, 4, 10, 6)


@torch.no_grad()
def test_a_batch_equals_its_sentences_one_by_one(model: CharacterBertModel, tokenizer: CharacterBertTokenizer):
    texts = ["The cat sat.", "A cloud of vectors drifts away from the origin", "Oui", "the the the the"]
    together = tokenizer(texts, padding=True, return_tensors="pt")
    states = model(**together, output_hidden_states=True).hidden_states
    for row, text in enumerate(texts):
        alone = tokenizer(text, return_tensors="pt")
        for ours, theirs in zip(states, model(**alone, output_hidden_states=True).hidden_states, strict=True):
            torch.testing.assert_close(ours[row, : theirs.shape[1]], theirs[0], rtol=0, atol=TOLERANCE)


@torch.no_grad()
def test_repeated_words_and_many_words_give_what_single_words_give(model: CharacterBertModel):
    """More words than are looked at at once, each seen several times, against one word at a time."""
    cnn: CharacterCnn = model.embeddings.word_embeddings
    ids = torch.tensor([spell(f"w{index % 1100}") for index in range(2400)]).view(4, 600, 50)
    found = cnn(ids)
    for row, place in [(0, 0), (1, 499), (2, 3), (3, 599)]:
        torch.testing.assert_close(found[row, place], cnn(ids[row, place][None, None])[0, 0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_highway_layers_follow_the_formula():
    torch.manual_seed(0)
    highways: Any = Highways(3, 1)
    x = torch.randn(5, 3)
    z = x @ highways._layers[0].weight.T + highways._layers[0].bias
    gate = 1 / (1 + torch.exp(-z[:, 3:]))
    torch.testing.assert_close(highways(x), gate * x + (1 - gate) * z[:, :3].clamp(min=0))


def test_what_is_not_spelled_is_refused(model: CharacterBertModel):
    for shape in [(2, 10), (1, 17, 50)]:
        with pytest.raises(InputError, match="CharacterBertTokenizer"):
            model(torch.zeros(shape, dtype=torch.long))


@pytest.mark.parametrize(("word", "ids"), [*zip(FACTS["words"], FACTS["word_char_ids"], strict=True)])
def test_recorded_words_are_spelled_as_recorded(word: str, ids: list[int]):
    assert list(spell(word)) == ids


def test_a_word_keeps_48_bytes():
    assert spell("x" * 48) == spell("x" * 49) == spell("x" * 60) != spell("x" * 47)
    assert spell("é" * 24 + "z") == spell("é" * 24)
    assert spell("x" + "é" * 24)[48] == 0xC3 + 1  # a letter is cut in two


def test_recorded_sentences_are_encoded_as_recorded(tokenizer: CharacterBertTokenizer, io: dict[str, Tensor]):
    texts, pairs = ["the naïve caffè [MASK] .", "hello world !"], ["日本 " + "x" * 60, None]
    first = tokenizer(texts[0], pairs[0], return_tensors="pt")
    kept = tokenizer(texts[1], padding="max_length", max_length=10, return_tensors="pt")
    # recorded without basic tokenisation: its words keep their accents, and the ideographs their word
    assert tokenizer.convert_ids_to_tokens(first["input_ids"][0]) == [
        "[CLS]",
        "the",
        "naive",
        "caffe",
        "[MASK]",
        ".",
        "[SEP]",
        "日",
        "本",
        "x" * 48,
        "[SEP]",
    ]
    assert first["token_type_ids"].tolist() == [[0] * 7 + [1] * 4]
    assert torch.equal(kept["input_ids"], io["input_ids"][1:])
    assert torch.equal(kept["attention_mask"], io["attention_mask"][1:])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Crème BRÛLÉE, s'il vous plaît!", ["creme", "brulee", ",", "s", "'", "il", "vous", "plait", "!"]),
        ("日本語abc", ["日", "本", "語", "abc"]),
        ("カタカナ 한국어", ["カタカナ", "한국어"]),
        ("so\u00adft\u200b hy\u0000phen\ufffd\tand\nlines", ["soft", "hyphen", "and", "lines"]),
        ("a$b=c`d^e|f~g", ["a", "$", "b", "=", "c", "`", "d", "^", "e", "|", "f", "~", "g"]),
        ("“quoted”—¡dash!", ["“", "quoted", "”", "—", "¡", "dash", "!"]),
        ("one\u00a0two\u2003three", ["one", "two", "three"]),
        ("", []),
        ("\u0301 \u200b", []),
    ],
)
def test_basic_tokenisation(text: str, words: list[str]):
    assert basic_words(text) == [unicodedata.normalize("NFD", word) for word in words]  # Hangul comes in letters


def test_half_characters_are_left_out():
    assert basic_words("a\ud800b c") == ["ab", "c"]


def test_special_strings_are_never_split(tokenizer: CharacterBertTokenizer):
    words = tokenizer.tokenize("A [MASK], not [mask] nor [UNK][SEP]!")
    assert words == ["a", "[MASK]", ",", "not", "[", "mask", "]", "nor", "[UNK]", "[SEP]", "!"]
    assert tokenizer.convert_tokens_to_ids("[UNK]") == (259, *[byte + 1 for byte in b"[UNK]"], 260, *[261] * 43)


def test_the_tokenizer_is_called_as_any_other(tokenizer: CharacterBertTokenizer):
    found = tokenizer(
        ["One two three four five six", "One"],
        padding=True,
        truncation=True,
        max_length=6,
        return_tensors="pt",
        return_special_tokens_mask=True,
    )
    assert found["input_ids"].shape == (2, 6, 50)
    assert tokenizer.convert_ids_to_tokens(found["input_ids"][0]) == ["[CLS]", "one", "two", "three", "four", "[SEP]"]
    assert found["attention_mask"].tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]
    assert found["special_tokens_mask"].tolist() == [[1, 0, 0, 0, 0, 1], [1, 0, 1, 1, 1, 1]]
    assert not found["token_type_ids"].any()
    assert not found["input_ids"][1, 3:].any()
    bare = tokenizer("One two", add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(bare["input_ids"]) == ["one", "two"]
    assert bare["attention_mask"] == [1, 1]


def test_the_tokenizer_s_smaller_tools_agree(tokenizer: Any):
    ids = tokenizer("one two")["input_ids"]
    assert tokenizer.build_inputs_with_special_tokens(tokenizer.convert_tokens_to_ids(["one", "two"])) == ids
    assert tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True) == [1, 0, 0, 1]
    assert tokenizer.convert_ids_to_tokens(ids, skip_special_tokens=True) == ["one", "two"]
    collated = tokenizer.pad([tokenizer("one"), tokenizer("one two")], return_tensors="pt")
    assert collated["input_ids"].shape == (2, 4, 50)
    assert collated["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert tokenizer("", add_special_tokens=False)["input_ids"] == []
    assert len(tokenizer) == 264


@given(st.text(max_size=40))
def test_spelled_words_can_be_read_again(text: str):
    words = [word for word in basic_words(text) if len(word.encode()) <= 48]
    assert CharacterBertTokenizer().convert_ids_to_tokens([spell(word) for word in words]) == words


def test_the_tokenizer_needs_no_files_and_keeps_its_options(tmp_path: Path):
    folder = recorded.publish(tmp_path / "bare", {"model_type": "character_bert", **CONFIG}, {})
    bare = AutoTokenizer.from_pretrained(folder)
    assert isinstance(bare, CharacterBertTokenizer)
    assert (bare.max_word_length, bare.model_max_length) == (50, 512)
    CharacterBertTokenizer(max_word_length=20, model_max_length=64).save_pretrained(tmp_path / "own")
    CharacterBertConfig(**CONFIG).save_pretrained(tmp_path / "own")
    own = AutoTokenizer.from_pretrained(tmp_path / "own")
    assert (own.max_word_length, own.model_max_length) == (20, 64)
    assert own("[CLS] hello", return_tensors="pt")["input_ids"].shape == (1, 4, 20)


def heads() -> dict[str, Tensor]:
    """The output layers of the published files, which keep the bias twice."""
    size, rows = CONFIG["hidden_size"], WORDS_IN_VOCABULARY
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "predictions.transform.dense.weight": (size, size),
        "predictions.transform.dense.bias": (size,),
        "predictions.transform.LayerNorm.weight": (size,),
        "predictions.transform.LayerNorm.bias": (size,),
        "predictions.decoder.weight": (rows, size),
        "predictions.bias": (rows,),
        "seq_relationship.weight": (2, size),
        "seq_relationship.bias": (2,),
    }
    drawn = {f"cls.{name}": torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return drawn | {"cls.predictions.decoder.bias": drawn["cls.predictions.bias"]}


def publish(folder: Path, *, prefix: str = "character_bert.", pickled: bool = True) -> Path:
    state = {f"{prefix}{name}": tensor for name, tensor in recorded.tensors("character_bert_tiny_state").items()}
    config: dict[str, Any] = {"model_type": "character_bert", "mlm_vocab_size": WORDS_IN_VOCABULARY, **CONFIG}
    if prefix:
        config |= {"architectures": ["CharacterBertForPreTraining"], "tie_word_embeddings": False}
        state |= heads() | {f"{prefix}embeddings.position_ids": torch.arange(16)[None]}
    return recorded.publish(folder, config, state, pickled=pickled)


@pytest.mark.parametrize("pickled", [True, False])
@pytest.mark.parametrize("prefix", ["character_bert.", ""], ids=["hub", "older"])
def test_the_published_layouts_open(tmp_path: Path, io: dict[str, Tensor], prefix: str, pickled: bool):
    folder = publish(tmp_path, prefix=prefix, pickled=pickled)
    opened, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert isinstance(opened, CharacterBertModel)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert recorded.furthest(outputs(opened, io), recorded.outputs_of(io)) < TOLERANCE


@torch.no_grad()
def test_the_published_head_guesses_words(tmp_path: Path, io: dict[str, Tensor]):
    opened, report = AutoModelForMaskedLM.from_pretrained(publish(tmp_path), output_loading_info=True)
    assert isinstance(opened, CharacterBertForMaskedLM)
    assert not report["missing_keys"]
    kept = {name.removeprefix("cls.predictions."): tensor for name, tensor in heads().items()}
    x = nn.functional.gelu(
        io["batch.last_hidden_state"] @ kept["transform.dense.weight"].T + kept["transform.dense.bias"]
    )
    x = nn.functional.layer_norm(x, x.shape[-1:], kept["transform.LayerNorm.weight"], kept["transform.LayerNorm.bias"])
    expected = x @ kept["decoder.weight"].T + kept["bias"]
    labels = expected.argmax(-1).masked_fill(io["attention_mask"] == 0, -100)
    found = opened(io["input_ids"], io["attention_mask"], io["token_type_ids"], labels=labels)
    torch.testing.assert_close(found.logits, expected, rtol=1e-5, atol=1e-4)
    loss = nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(found.loss, loss, rtol=1e-4, atol=1e-5)


def test_what_is_saved_opens_again(tmp_path: Path, model: CharacterBertModel):
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), CharacterBertConfig)
    assert recorded.furthest(dict(again.state_dict()), dict(model.state_dict())) == 0


def test_the_published_size_has_the_published_tensors():
    made = recorded.empty(CharacterBertModel, CharacterBertConfig())
    expected = recorded.facts("published_shapes_character-bert-encoder")
    assert recorded.shapes(made) == expected["tensors"]
    assert made.num_parameters() == expected["n_parameters"] == 104_603_760


def test_a_fresh_model_starts_as_specified():
    torch.manual_seed(0)
    filters = [[1, 32], [3, 64], [7, 256]]
    made = CharacterBertForMaskedLM(
        CharacterBertConfig(**{**CONFIG, "hidden_size": 64, "cnn_filters": filters, "mlm_vocab_size": 500})
    )
    state = made.state_dict()
    words = "character_bert.embeddings.word_embeddings"
    assert not state[f"{words}._char_embedding_weights"].any()
    for index, (width, _) in enumerate(filters):
        bound = (16 * width) ** -0.5
        for part in ("weight", "bias"):
            drawn = state[f"{words}.char_conv_{index}.{part}"]
            assert 0.8 * bound < float(drawn.abs().max()) <= bound
    for layer in (f"{words}._highways._layers.0", "character_bert.encoder.layer.1.intermediate.dense"):
        assert float(state[f"{layer}.weight"].std()) == pytest.approx(0.02, rel=0.05)
        assert not state[f"{layer}.bias"].any()  # of the gates too
    assert float(state["character_bert.embeddings.position_embeddings.weight"].std()) == pytest.approx(0.02, rel=0.1)
    assert (state["character_bert.embeddings.LayerNorm.weight"] == 1).all()
    assert not state["cls.predictions.bias"].any()
