"""CoOp through a small CLIP with random weights, against plain autograd, and through `lite`."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import clone

from gpcache import DataError, EncoderError, TextPrior
from gpcache.encoders import load_encoder
from gpcache.encoders.base import TokenText
from gpcache.methods import coop
from gpcache.methods.coop import CoOpClassifier, LearnedPrompts, embedded_words

NAMES = ("cat", "dog", "big_cat", "a")
TEXTS = ("cat", "dog", "big cat", "a")
SCALE = 10.0
HERE = {"device": "cpu", "dtype": "float64"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A CLIP of two layers that reads sixteen tokens: letters, "cat" and "dog"."""
    transformers = pytest.importorskip("transformers", reason="pip install 'gpcache[hf]'")
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    letters = [letter + end for letter in "abcdefghijklmnopqrstuvwxyz." for end in ("", "</w>")]
    merged = ["ca", "cat</w>", "do", "dog</w>"]
    special = ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: number for number, word in enumerate(letters + merged + special)}
    merges = [("c", "a"), ("ca", "t</w>"), ("d", "o"), ("do", "g</w>")]
    sizes = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2}
    start, end = vocabulary[special[0]], vocabulary[special[1]]
    text = {"max_position_embeddings": 16, "vocab_size": end + 1}
    text |= {"bos_token_id": start, "eos_token_id": end}
    vision = {"image_size": 32, "patch_size": 16}
    config = transformers.CLIPConfig(
        text_config=sizes | text, vision_config=sizes | vision, projection_dim=12
    )
    torch.manual_seed(0)
    model = transformers.CLIPModel(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "logit" not in name:
                value.normal_(std=0.2)
    square = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    place = tmp_path_factory.mktemp("clip")
    tokenizer = transformers.CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=16)
    for part in (model, tokenizer, CLIPImageProcessorPil(**square)):
        part.save_pretrained(place)
    return str(place)


@pytest.fixture(scope="module")
def encoder(folder):
    """In double precision, so that nothing hides behind rounding."""
    from gpcache.encoders.hugging_face import HuggingFaceEncoder

    loaded = HuggingFaceEncoder(folder, device="cpu")
    loaded._model.double()
    return loaded


@pytest.fixture(scope="module")
def lite():
    return load_encoder("lite", device="cpu")


def make_problem(shots=(4, 2, 3, 0)):
    """Features near directions of their own; "a" has no shots."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(4, 12))
    labels = np.repeat(np.arange(4), shots)
    X = centres[labels] + 0.3 * generator.normal(size=(len(labels), 12))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    prior = TextPrior(NAMES, centres, SCALE)
    return SimpleNamespace(X=X, y=np.array(NAMES)[labels], prior=prior)


@pytest.fixture
def problem():
    return make_problem()


def model_of(problem, through, **options):
    given = {"text_prior": problem.prior, "encoder": through, "context_length": 3, "epochs": 4}
    return CoOpClassifier(**given | HERE | options)


def columns(values):
    """The columns of values by NAMES, in the sorted order of the classes."""
    return np.asarray(values)[:, np.argsort(NAMES)]


# Prompts.


@pytest.mark.parametrize(
    ("class_position", "context", "prompt"),
    [
        ("end", "a photo of a", "a photo of a {}."),
        ("end", "dog", "dog {}."),
        ("middle", "a b c d", "a b {} c d."),
        ("middle", "a dog b", "a {} dog b."),
        ("front", "is a dog", "{} is a dog."),
    ],
)
def test_the_vectors_of_words_give_the_prompt_of_those_words(
    class_position, context, prompt, problem, encoder
):
    options = {"class_position": class_position, "context": context, "epochs": 0}
    model = model_of(problem, encoder, **options).fit(problem.X, problem.y)
    vectors = encoder.encode_texts([prompt.format(text) for text in TEXTS]).astype(float)
    expected = columns(SCALE * problem.X @ vectors.T)
    np.testing.assert_allclose(model.logits(problem.X), expected, atol=1e-5)


@pytest.mark.parametrize("prompt", ["a photo of a {}.", "{}, seen unboxingly.", "a {} photo."])
def test_so_they_do_for_the_words_of_lite(prompt, lite):
    """WordPiece: names and contexts of several tokens, padded to the longest."""
    names = ["grand piano", "ant", "brontosaurus", "x"]
    context = prompt.replace("{}", "").rstrip(".").strip()
    position = {"a photo of a": "end", ", seen unboxingly": "front", "a  photo": "middle"}[context]
    vectors = embedded_words(lite, context)
    prompts = LearnedPrompts.make(lite, names, len(vectors), position)
    found = prompts.encoded(vectors).detach().numpy()
    expected = lite.encode_texts([prompt.format(name) for name in names])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_each_class_may_have_a_context_of_its_own(encoder):
    prompts = LearnedPrompts.make(encoder, TEXTS, 2, "end")
    contexts = torch.stack(
        [embedded_words(encoder, words) for words in ("a b", "c d", "e f", "dog a")]
    )
    expected = encoder.encode_texts(["a b cat.", "c d dog.", "e f big cat.", "dog a a."])
    np.testing.assert_allclose(prompts.encoded(contexts), expected, atol=1e-5)


# Gradients.


@pytest.mark.parametrize("shape", [(2, 24), (2, 2, 24)], ids=["shared", "class-specific"])
def test_the_gradient_is_that_of_finite_differences(shape, encoder):
    prompts = LearnedPrompts.make(encoder, TEXTS[:2], 2, "middle")
    generator = torch.Generator().manual_seed(0)
    context = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(prompts.encoded, context, atol=1e-7)


def test_blocks_of_classes_change_nothing(encoder, monkeypatch):
    prompts = LearnedPrompts.make(encoder, TEXTS, 2, "end")
    generator = torch.Generator().manual_seed(0)
    context = torch.randn((2, 24), generator=generator, dtype=torch.float64).requires_grad_()

    def vectors_and_gradient():
        vectors = prompts.encoded(context)
        (gradient,) = torch.autograd.grad(vectors.square().cumsum(1).sum(), context)
        return vectors.detach(), gradient

    expected = vectors_and_gradient()
    monkeypatch.setattr(coop, "TEXT_BATCH", 3)
    for found, wanted in zip(vectors_and_gradient(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


# Training.


def by_hand(problem, encoder, start, *, epochs):
    """Full batches by torch alone: [start] + context + the rest, as the authors splice them."""
    tokens = encoder.embed_tokens([f"x x x {text}." for text in TEXTS])
    context = start.clone().requires_grad_()
    optimiser = torch.optim.SGD([context], lr=2e-3, momentum=0.9, weight_decay=5e-4)
    labels = torch.tensor([NAMES.index(name) for name in problem.y])
    fixed = tokens.embeddings

    def logits():
        middle = context.expand(len(TEXTS), -1, -1)
        spliced = torch.cat([fixed[:, :1], middle, fixed[:, 4:]], dim=1)
        vectors = encoder.encode_tokens(TokenText(spliced, tokens.ids, tokens.mask))
        return SCALE * torch.tensor(problem.X) @ vectors.T

    for epoch in range(epochs):
        rate = 2e-3 * (1 + np.cos(np.pi * (epoch - 1) / (epochs - 1))) / 2
        optimiser.param_groups[0]["lr"] = rate if epoch else 1e-5
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(logits(), labels).backward()
        optimiser.step()
    return columns(logits().detach())


def test_training_is_plain_autograd(problem, encoder):
    start = model_of(problem, encoder, epochs=0).fit(problem.X, problem.y)
    context = start.parameters_[1]
    assert context.shape == (3, 24)
    assert 0.01 < float(context.std()) < 0.03
    expected = by_hand(problem, encoder, context, epochs=12)
    model = model_of(problem, encoder, epochs=12).fit(problem.X, problem.y)
    np.testing.assert_allclose(model.logits(problem.X), expected, atol=1e-9)
    assert np.abs(expected - start.logits(problem.X)).max() > 1e-3


@pytest.mark.parametrize("context", [None, "a dog b"])
@pytest.mark.parametrize("class_specific", [False, True])
def test_training_pays(class_specific, context, problem, encoder):
    options = {"epochs": 30, "learning_rate": 0.1, "class_specific": class_specific}
    model = model_of(problem, encoder, context=context, **options).fit(problem.X, problem.y)
    assert model.training_loss_[-1] < 0.995 * model.training_loss_[0]
    learned = model.parameters_[1]
    assert learned.shape == ((4, 3, 24) if class_specific else (3, 24))
    if class_specific:
        assert float((learned[0] - learned[1]).abs().max()) > 1e-3


def test_the_seed_decides_and_nothing_else(problem, encoder):
    torch.manual_seed(1)
    one = model_of(problem, encoder, batch_size=2).fit(problem.X, problem.y).logits(problem.X)
    torch.manual_seed(2)
    again = model_of(problem, encoder, batch_size=2).fit(problem.X, problem.y).logits(problem.X)
    np.testing.assert_array_equal(one, again)
    other = model_of(problem, encoder, batch_size=2, random_state=1).fit(problem.X, problem.y)
    assert np.abs(other.logits(problem.X) - one).max() > 1e-6


@pytest.mark.parametrize(
    ("shots", "epochs"), [((1, 1, 1, 0), 50), ((1, 3, 2, 0), 100), ((5, 6, 4, 5), 200)]
)
def test_epochs_follow_the_shots(shots, epochs, encoder):
    problem = make_problem(shots)
    model = model_of(problem, encoder, epochs="auto", context_length=1)
    assert len(model.fit(problem.X, problem.y).training_loss_) == epochs


def test_the_encoder_stays_as_it_is(problem, encoder):
    before = encoder.encode_texts(TEXTS)
    model_of(problem, encoder).fit(problem.X, problem.y)
    np.testing.assert_array_equal(encoder.encode_texts(TEXTS), before)
    assert all(value.grad is None for value in encoder._model.parameters())


def test_a_single_precision_encoder_serves_a_double_precision_model(problem, folder, encoder):
    from gpcache.encoders.hugging_face import HuggingFaceEncoder

    single = HuggingFaceEncoder(folder, device="cpu")
    found = model_of(problem, single).fit(problem.X, problem.y).logits(problem.X)
    expected = model_of(problem, encoder).fit(problem.X, problem.y).logits(problem.X)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_answers_need_no_encoder(problem, encoder):
    model = model_of(problem, encoder).fit(problem.X, problem.y)
    expected = model.predict_proba(problem.X)
    model.set_params(encoder=None)
    np.testing.assert_array_equal(model.predict_proba(problem.X), expected)
    assert expected.shape == (9, 4)


def test_a_temperature_comes_from_folds_if_asked_for(problem, encoder):
    plain = model_of(problem, encoder).fit(problem.X, problem.y)
    assert plain.temperature_ == 1.0
    assert not plain.loo_.counted.any()
    model = model_of(problem, encoder, calibrate=True, n_folds=2).fit(problem.X, problem.y)
    assert model.loo_.counted.all()
    assert model.temperature_ != 1.0
    np.testing.assert_array_equal(model.logits(problem.X), plain.logits(problem.X))


def test_views_are_what_is_trained_on(problem, encoder):
    views = problem.X[:, None] + 0.1
    model = model_of(problem, encoder).fit(problem.X, problem.y, views=views)
    other = model_of(problem, encoder).fit(views[:, 0], problem.y)
    np.testing.assert_allclose(model.logits(problem.X), other.logits(problem.X), atol=1e-9)


def test_a_clone_shares_the_encoder(problem, lite):
    """Which holds a session of another library that cannot be copied."""
    model = CoOpClassifier(text_prior=problem.prior, encoder=lite, context="a photo of a")
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.encoder is lite


# Mistakes.

MISTAKES = {
    "no encoder": ({"encoder": None}, "give it encoder=load_encoder"),
    "a name": ({"encoder": "lite"}, "got 'lite'"),
    "no text": ({"text_prior": None}, "needs text"),
    "epochs": ({"epochs": -1}, "epochs must be a whole number"),
    "length": ({"context_length": 0}, "context_length must be a whole number"),
    # "a" fills the sixteen tokens, "big cat" does not fit.
    "too long": ({"context_length": 12}, "'big cat' with a context of 12 vectors is longer than"),
    "words": ({"context": 4}, "context of CoOpClassifier must be None or words"),
    "no words": ({"context": " "}, "at least one word"),
    "many words": ({"context": "dog " * 20}, "is longer than the encoder"),
    "position": ({"class_position": "back"}, "class_position of CoOpClassifier must be one of"),
    "rate": ({"learning_rate": 0}, "learning_rate of CoOpClassifier"),
    "device": ({"device": "abacus"}, "device must be 'auto' or a torch device"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_sentence(mistake, problem, encoder, tools):
    options, phrase = MISTAKES[mistake]
    with tools.one_sentence(DataError, phrase):
        model_of(problem, encoder, **options).fit(problem.X, problem.y)


@pytest.mark.parametrize("names", [(0, 1, 2, 3), ("cat", "dog", "__", "a")])
def test_classes_without_names_are_refused(names, problem, encoder, tools):
    prior = TextPrior(names, problem.prior.vectors)
    model = model_of(problem, encoder, text_prior=prior)
    with tools.one_sentence(DataError, "puts class names into its prompts"):
        model.fit(problem.X[:1], [names[0]])


def test_features_of_another_encoder_are_refused(problem, lite, tools):
    with tools.one_sentence(DataError, "X has 12 features but the encoder 'lite' gives 1664"):
        model_of(problem, lite).fit(problem.X, problem.y)


def test_an_encoder_without_tokens_is_refused(problem, encoder, tools):
    class Closed(type(encoder)):
        has_tokens = False

    closed = object.__new__(Closed)
    closed.__dict__ = encoder.__dict__
    with tools.one_sentence(EncoderError, "no access to the tokens of a text"):
        model_of(problem, closed).fit(problem.X, problem.y)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_and_cpu_agree(problem, folder):
    from gpcache.encoders.hugging_face import HuggingFaceEncoder

    found = []
    for device in ("cpu", "cuda"):
        through = HuggingFaceEncoder(folder, device=device)
        through._model.double()
        model = model_of(problem, through, device=device).fit(problem.X, problem.y)
        found.append(model.predict_proba(problem.X))
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)
