"""CoOp (Zhou et al., IJCV 2022): the words before a class name are learned as vectors.

    t_y = text encoder ([v₁] … [v_M] [name of y] .)        logits = s · f · t_y / ‖t_y‖

The text encoder is frozen; its gradient moves v₁ … v_M, which all classes share or each class has
separately. The authors drop the last, smaller batch of an epoch; here it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gpcache.encoders.base import TEXT_BATCH, Encoder, TokenText
from gpcache.encoders.prompts import clean_class_name
from gpcache.errors import DataError, EncoderError
from gpcache.methods.cache.search import Auto
from gpcache.methods.cache.shots import Shots
from gpcache.methods.text_prior import TextPrior
from gpcache.methods.trained_head import Parameters, TrainedHeadClassifier
from gpcache.support.checks import one_of, shown, whole

SPREAD = 0.02
POSITIONS = ("end", "middle", "front")
# Two words that are one token each in every vocabulary. Comparing two texts shows their position.
WORD, OTHER = "x", "z"


@dataclass(kw_only=True, eq=False, repr=False)
class CoOpClassifier(TrainedHeadClassifier):
    """CoOp: prompts that are learned through the text encoder (Zhou et al., 2022).

    `fit` encodes the prompts of all classes in every step, so it takes as long as a text encoder.
    More than 64 classes are encoded in blocks that are computed again in the backward pass, which
    bounds the memory. The fitted model holds the class vectors and the context as `parameters_`,
    and predicts without the encoder.

    Parameters
    ----------
    text_prior : TextPrior
        Class names and logit scale; required. Its vectors are not used.
    encoder : Encoder
        Encoder of the image features; it must give access to the tokens of a text.
    context_length : int, default=16
        Number of context vectors, initialised from N(0, 0.02²).
    context : str, optional
        Words to start from instead, such as "a photo of a".
    class_position : {"end", "middle", "front"}, default="end"
        Position of the class name in the context.
    class_specific : bool, default=False
        Whether each class has its own context.
    epochs : int or "auto", default="auto"
        "auto" is 50 at one shot per class, 100 up to four shots, and 200 above.
    batch_size : int, default=32
        Number of rows in a step.
    learning_rate : float, default=2e-3
        Initial learning rate of SGD with momentum with a cosine schedule.
    weight_decay : float, default=5e-4
        Weight decay.
    calibrate : bool, default=False
        Train in folds of the shots as well, to fit the temperature.
    n_folds : int, default=4
        Number of folds of the shots.
    device : str or torch.device, default="auto"
        "auto" takes a GPU if there is one.
    dtype : str or torch.dtype, default="auto"
        "auto" is float32 on a GPU and float64 on a CPU.
    random_state : int, default=0
        Seed of folds and batches.

    Examples
    --------
    >>> import numpy as np
    >>> from gpcache import load_encoder
    >>> from gpcache.methods import CoOpClassifier, TextPrior
    >>> encoder = load_encoder("lite")
    >>> text = encoder.encode_texts(["cat", "dog"])
    >>> prior = TextPrior(["cat", "dog"], text, encoder.logit_scale)
    >>> model = CoOpClassifier(text_prior=prior, encoder=encoder, context_length=2, epochs=1)
    >>> model.fit(text, ["cat", "dog"]).predict(text).shape
    (2,)
    """

    text_prior: TextPrior | None = None
    encoder: Encoder | None = None
    context_length: int = 16
    context: str | None = None
    class_position: Literal["end", "middle", "front"] = "end"
    class_specific: bool = False
    epochs: int | Auto = "auto"
    batch_size: int = 32
    learning_rate: float = 2e-3
    weight_decay: float = 5e-4
    calibrate: bool = False
    n_folds: int = 4
    device: str | torch.device = "auto"
    dtype: str | torch.dtype = "auto"
    random_state: int = 0

    publication = "Zhou et al., 2022, Learning to Prompt for Vision-Language Models"
    trains = True
    needs = ("text", "shots", "encoder")
    _optimiser: ClassVar[Literal["adamw", "adam", "sgd"]] = "sgd"
    _warm_up_epochs: ClassVar[int] = 1

    def _check_options(self) -> None:
        super()._check_options()
        whole("context_length", self.context_length, least=1)
        one_of("class_position", self.class_position, POSITIONS, owner=self)
        if self.context is not None and not isinstance(self.context, str):
            raise DataError(
                "context of CoOpClassifier must be None or words such as 'a photo of a', got "
                f"{shown(self.context)}."
            )
        if not isinstance(self.encoder, Encoder):
            raise DataError(
                "CoOpClassifier learns prompts through the text encoder: give it "
                f"encoder=load_encoder(…), got {shown(self.encoder)}."
            )
        if not self.encoder.has_tokens:
            raise EncoderError(
                f"CoOpClassifier cannot learn prompts through {self.encoder.name!r}, which gives "
                "no access to the tokens of a text: use an encoder whose has_tokens is true."
            )

    def _trained_parts(self, shots: Shots) -> tuple[Parameters, Callable[[], Parameters]]:
        assert self.encoder is not None
        width = shots.features.shape[1]
        if width != self.encoder.dim:
            raise DataError(
                f"X has {width} features but the encoder {self.encoder.name!r} gives "
                f"{self.encoder.dim}: X must come from that encoder."
            )
        names, start = self._names(), self._start_of_context(self.encoder)
        prompts = LearnedPrompts.make(self.encoder, names, start.shape[-2], self.class_position)
        context = start.clone().requires_grad_()
        return [context], lambda: [prompts.encoded(context).to(shots.features), context]

    def _head(self, parameters: Parameters, features: Tensor) -> Tensor:
        return self._logit_scale * features @ parameters[0].mT

    def _automatic_epochs(self, shots: Shots) -> int:
        if shots.per_class < 2:
            return 50
        return 100 if shots.per_class <= 4 else 200

    def _names(self) -> list[str]:
        """The class names as they are written in a sentence."""
        names = []
        for label in self.classes_.tolist():
            name = clean_class_name(label) if isinstance(label, str) else ""
            if not name:
                raise DataError(
                    f"CoOpClassifier puts class names into its prompts, but the class "
                    f"{shown(label)} has none: use names as labels."
                )
            names.append(name)
        return names

    def _start_of_context(self, encoder: Encoder) -> Tensor:
        """Context vectors (M, width) of all classes, or (c, M, width) of each, at step 0."""
        classes = [len(self.classes_)] if self.class_specific else []
        if self.context is not None:
            words = embedded_words(encoder, self.context)
            return words.expand(*classes, *words.shape)
        embeddings = encoder.embed_tokens([WORD]).embeddings
        generator = torch.Generator().manual_seed(int(self.random_state))
        shape = (*classes, self.context_length, embeddings.shape[-1])
        return SPREAD * torch.randn(shape, generator=generator, dtype=torch.float64).to(embeddings)

    def __sklearn_clone__(self) -> Self:
        # An encoder is large and frozen, and may not be copyable: clones share it.
        return type(self)(**self.get_params(deep=False))


@dataclass(frozen=True)
class LearnedPrompts:
    """One prompt per class, in which some tokens are replaced by context vectors.

    `number` (c, length) is the index of the context vector at each token, −1 for other tokens.
    """

    encoder: Encoder
    tokens: TokenText
    number: Tensor

    @classmethod
    def make(
        cls, encoder: Encoder, names: Sequence[str], length: int, class_position: str
    ) -> LearnedPrompts:
        """Prompts with `length` context vectors around each name and a full stop at the end."""
        before = {"end": length, "middle": length // 2, "front": 0}[class_position]

        def sentences(word: str, end: str = ".") -> list[str]:
            context = [word] * length
            words = ([*context[:before], name, *context[before:]] for name in names)
            return [" ".join(one) + end for one in words]

        # The full stop is found only if nothing was cut off.
        is_complete = differences(
            encoder, sentences(WORD, f" {WORD}"), sentences(WORD, f" {OTHER}")
        ).any(1)
        if not bool(is_complete.all()):
            name = names[int((~is_complete).int().argmax())]
            raise DataError(
                f"The class name {shown(name)} with a context of {length} vectors is longer than "
                f"the encoder {encoder.name!r} reads: shorten the name or the context."
            )
        places = differences(encoder, sentences(WORD), sentences(OTHER))
        if bool((places.sum(1) != length).any()):
            raise _unplaced(encoder)
        number = torch.where(places, places.cumsum(1) - 1, -1)
        return cls(encoder, encoder.embed_tokens(sentences(WORD)), number)

    def encoded(self, context: Tensor) -> Tensor:
        """Unit vectors (c, d) with context (M, width) of all classes, or (c, M, width) of each."""
        rows = torch.arange(len(self.number), device=self.number.device)
        blocks = torch.split(rows, TEXT_BATCH)
        if len(blocks) == 1:
            return self._encoded(context, rows)
        return torch.cat(
            [checkpoint(self._encoded, context, block, use_reentrant=False) for block in blocks]
        )

    def _encoded(self, context: Tensor, rows: Tensor) -> Tensor:
        number, tokens = self.number[rows], self.tokens
        which = number.clamp(min=0)
        vectors = context[which] if context.ndim == 2 else context[rows[:, None], which]
        embeddings = torch.where(number[..., None] >= 0, vectors, tokens.embeddings[rows])
        return self.encoder.encode_tokens(
            TokenText(embeddings, tokens.ids[rows], tokens.mask[rows])
        )


def embedded_words(encoder: Encoder, words: str) -> Tensor:
    """The token embeddings (M, width) of words, without the tokenizer's special tokens."""
    start = differences(encoder, [WORD], [OTHER])[0]
    end = differences(encoder, [f"{words} {WORD}"], [f"{words} {OTHER}"])[0]
    if not bool(end.any()):
        raise DataError(
            f"The context {shown(words)} is longer than the encoder {encoder.name!r} reads: "
            "give fewer words."
        )
    first, last = int(start.int().argmax()), int(end.int().argmax())
    if first == last:
        raise DataError("context of CoOpClassifier must hold at least one word.")
    return encoder.embed_tokens([f"{words} {WORD}"]).embeddings[0, first:last]


def differences(encoder: Encoder, texts: Sequence[str], others: Sequence[str]) -> Tensor:
    """Mask (n, length) of the tokens in which texts differ from others of the same length."""
    ids, other_ids = encoder.embed_tokens(texts).ids, encoder.embed_tokens(others).ids
    if ids.shape != other_ids.shape:
        raise _unplaced(encoder)
    return ids != other_ids


def _unplaced(encoder: Encoder) -> EncoderError:
    return EncoderError(
        f"CoOpClassifier cannot place its context: the tokenizer of {encoder.name!r} does not keep "
        f"{WORD!r} and {OTHER!r} as one token each."
    )
