"""Request keys and seeds: what makes two requests the same one.

A request key is sha256 over the model's identity, the messages, the sampling and the seed. A reply
is reused wherever the same request would be sent, and nowhere else.
"""

import hashlib
from collections.abc import Mapping, Sequence

import orjson

from mbt_cli.core.chat import Json, Message

_SEED_BITS = 31


def canonical_json(value: Json) -> bytes:
    """Bytes that are equal for equal values: sorted keys, no white space, UTF-8.

    Raises:
        TypeError: `value` holds something that is not JSON, such as a set.

    Example:
        >>> canonical_json({"b": 1, "a": [True, None]})
        b'{"a":[true,null],"b":1}'
    """
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def sha256_of(value: Json) -> str:
    """Hex sha256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def request_key(
    identity: Mapping[str, Json],
    messages: Sequence[Message],
    sampling: Mapping[str, Json],
    seed: int,
) -> str:
    """Hex key of one request.

    Args:
        identity: What the model is (`Backend.identity`).
        messages: The conversation.
        sampling: Every other field of the body that changes the reply.
        seed: Seed of attempt 0.
    """
    return sha256_of([identity, list(messages), sampling, seed])


def request_seed(
    study_seed: int, purpose: str, question_id: str, sample: int, *, content_attempt: int = 0
) -> int:
    """Seed of one request: 31 bits, independent of the order of the requests.

    Args:
        study_seed: `[study] seed`.
        purpose: What the stage asks for, such as `rollout` or `judge:answer_match`; for later
            requests of a program followed by their step.
        question_id: The question that the request is about.
        sample: Number of the sample, trace or vote, from 0.
        content_attempt: 0 at first, then 1, 2, ... for content retries.

    Example:
        >>> request_seed(42, "rollout", "q1", 0) == request_seed(42, "rollout", "q1", 0)
        True
        >>> request_seed(42, "rollout", "q1", 0) == request_seed(42, "rollout", "q1", 1)
        False
    """
    text = canonical_json([study_seed, purpose, question_id, sample, content_attempt])
    digest = hashlib.sha256(text).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _SEED_BITS)


def retry_seed(seed: int, content_attempt: int) -> int:
    """Seed of a content retry; attempt 0 keeps the request's own seed.

    Example:
        >>> retry_seed(7, 0), retry_seed(7, 1) == retry_seed(7, 2)
        (7, False)
    """
    if content_attempt == 0:
        return seed
    digest = hashlib.sha256(canonical_json(["content retry", seed, content_attempt])).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _SEED_BITS)
