"""Every decoder of outside bytes with changed valid inputs: each is decoded or refused with a typed error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.messages import mutate
from tests.fuzz.targets import TARGETS
from tests.support.examples import examples

if TYPE_CHECKING:
    from random import Random


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.represented_by("bearer tokens", "archive segments")
def test_a_changed_input_is_decoded_or_refused(name: str) -> None:
    target = TARGETS[name]
    seeds = target.seeds()
    for seed in seeds:
        target(seed)
        for end in range(0, min(len(seed), 60), target.weight):
            target(seed[:end])

    @examples(max(150 // target.weight, 5))
    @given(st.sampled_from(seeds), st.randoms(use_true_random=False))
    def check(seed: bytes, random: Random) -> None:
        target(mutate(random, seed))

    @examples(max(50 // target.weight, 2))
    @given(st.binary(max_size=200))
    def check_noise(data: bytes) -> None:
        target(data)

    check()
    check_noise()
