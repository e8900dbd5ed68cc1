"""Published laws of the batch: name, kind, inputs, range, source. Only a noise scale enters the penalties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dscalc.cost.sgd import largest_batch
from dscalc.frozen import dataclass
from dscalc.records import Array, Mask

NOISE_SCALE, OPTIMAL, OVERHEAD20 = "noise_scale", "optimal", "overhead20"
OVERHEAD = 0.2  # of data: what the critical batch of kind overhead20 costs
ZHANG_SEQUENCE = 512  # tokens of the sequences in which that law counts


@dataclass(frozen=True, slots=True, eq=False)
class LawInputs:
    """What laws may ask for; arrays (n,) or (1,), nan where unknown."""

    train_loss: Array  # nats a token
    tokens: Array  # of the whole training
    params: Array  # without embedding and head, as the papers count
    training_flop: Array  # of the whole training, 6 N D
    noise_scale: Array  # tokens


@dataclass(frozen=True, slots=True)
class Within:
    """Range of one input in which a law was fitted."""

    name: str
    low: float
    high: float
    unit: str


@dataclass(frozen=True, slots=True)
class BatchLaw:
    """One law. ``batch_tokens`` is what its paper calls the batch, ``lr`` the learning rate that belongs to it."""

    name: str
    kind: str
    needs: tuple[str, ...]
    formula: str
    source: str
    words: str
    within: tuple[Within, ...]
    batch_tokens: Callable[[LawInputs], Array]
    lr: Callable[[LawInputs], Array] | None = None


LAWS: dict[str, BatchLaw] = {
    law.name: law
    for law in (
        BatchLaw(
            "given",
            NOISE_SCALE,
            ("noise_scale",),
            "B_noise",
            "[McCandlish2018] section 2.2",
            "the gradient noise scale that you measured",
            (),
            lambda given: given.noise_scale,
        ),
        BatchLaw(
            "kaplan",
            NOISE_SCALE,
            ("train_loss",),
            "2e8 / loss^(1/0.21)",
            "[Kaplan2020] section 5.1",
            "critical batch at a training loss; grows as the loss falls",
            # up to guessing among 50,257 tokens; down to 2e6 tokens, the largest batch it names at convergence
            (Within("train_loss", 2.6, 10.9, "nats"), Within("params", 768.0, 1.5e9, "parameters")),
            lambda given: 2e8 * np.power(given.train_loss, -1.0 / 0.21),
        ),
        BatchLaw(
            "deepseek",
            OPTIMAL,
            ("training_flop",),
            "0.2920 C^0.3271",
            "[DeepSeekLLM] section 3.1",
            "best batch for a compute budget",
            (Within("training_flop", 1e17, 2e19, "FLOP"),),
            lambda given: 0.2920 * np.power(given.training_flop, 0.3271),
            lambda given: 0.3118 * np.power(given.training_flop, -0.1250),
        ),
        BatchLaw(
            "step",
            OPTIMAL,
            ("tokens",),
            "0.58 D^0.571",
            "[Li2025]; range unverified",
            "best batch for a number of tokens",
            (Within("tokens", 2e9, 1e11, "tokens"), Within("params", 6e7, 1.08e9, "parameters")),
            lambda given: 0.58 * np.power(given.tokens, 0.571),
            lambda given: 1.79 * np.power(given.params, -0.713) * np.power(given.tokens, 0.307),
        ),
        BatchLaw(
            "zhang",
            OVERHEAD20,
            ("params",),
            "93.20 (N / 1e6)^0.47 sequences of 512",
            "[Zhang2024]; units inferred, unverified",
            "batch that costs 20 % more data, tokens growing with parameters",
            (Within("params", 8.5e7, 1.2e9, "parameters"),),
            lambda given: ZHANG_SEQUENCE * 93.20 * np.power(given.params * 1e-6, 0.47),
        ),
    )
}


def law_batch_tokens(law: str, inputs: LawInputs) -> Array:
    """The batch that a law's paper names.

    Args:
        law: a name of ``LAWS``.
        inputs [tokens, (n,)]: what it asks for; nan where unknown.

    Returns:
        A noise scale, an optimal batch, or the batch that costs 20 % more data; nan where an input is unknown
        [tokens, (n,)].

    Raises:
        KeyError: no such law.

    References:
        [Kaplan2020] section 5.1, [DeepSeekLLM] section 3.1, [Li2025], [Zhang2024].
    """
    return np.asarray(LAWS[law].batch_tokens(inputs))


def critical_batch_tokens(law: str, inputs: LawInputs) -> Array:
    """The batch from which on more workers stop helping.

    Args:
        law: a name of ``LAWS``.
        inputs [tokens, (n,)]: what it asks for; nan where unknown.

    Returns:
        The noise scale B_crit; of kind ``overhead20`` 5 B*, at which E/E_min = 1 + B*/B_crit = 1.2; of kind ``optimal``
        the optimum itself, which is no noise scale and enters no penalty; nan where an input is unknown [tokens, (n,)].

    Raises:
        KeyError: no such law.

    References:
        [McCandlish2018] section 2.3, [Zhang2024].
    """
    batch = law_batch_tokens(law, inputs)
    return np.asarray(batch / OVERHEAD if LAWS[law].kind == OVERHEAD20 else batch)


def largest_batch_tokens(law: str, inputs: LawInputs, penalty: Array) -> Array:
    """The largest batch under a law: within a penalty on data where it gives a noise scale, else its optimum.

    Args:
        law: a name of ``LAWS``.
        inputs [tokens, (n,)]: what it asks for; nan where unknown.
        penalty [-, (n,)]: largest E/E_min accepted, above 1.

    Returns:
        (penalty - 1) B_crit, or the optimum; nan where an input is unknown [tokens, (n,)].

    Raises:
        KeyError: no such law.

    References:
        [McCandlish2018] section 2.3.
    """
    critical = critical_batch_tokens(law, inputs)
    return critical if LAWS[law].kind == OPTIMAL else largest_batch(critical, penalty)


def outside(law: str, inputs: LawInputs) -> dict[str, Mask]:
    """Where inputs leave the range in which a law was fitted.

    Args:
        law: a name of ``LAWS``.
        inputs [tokens, (n,)]: what it asks for; nan where unknown.

    Returns:
        A mask for each input that has a range; an unknown input is not outside [flags, (n,)].

    Raises:
        KeyError: no such law.

    References:
        [Kaplan2020] section 2, [DeepSeekLLM] section 3.1, [Li2025], [Zhang2024].
    """
    found = {}
    for within in LAWS[law].within:
        value = np.asarray(getattr(inputs, within.name))
        found[within.name] = np.asarray((value < within.low) | (value > within.high))
    return found
