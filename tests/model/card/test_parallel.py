"""What one of several devices keeps: a share of the heads, but all latents."""

from __future__ import annotations

import pytest

from attnscope.base.errors import OptionError
from attnscope.model.card.anatomy import LayerAnatomy, LayerCache
from attnscope.model.card.parallel import of_one_device

GROUPED = LayerAnatomy("sliding", 24, 6, 10, 14, window=9, cache=LayerCache(6 * 24, window=9))
LATENT = LayerAnatomy("latent", 24, 24, 10, 14, cache=LayerCache(77), d_K_latent=77, d_V_latent=70)
LINEAR = LayerAnatomy("linear", 24, cache=LayerCache(constant=48, constant_float32=96, newest=24))


@pytest.mark.parametrize(("n_device", "n_kept"), [(1, 6), (2, 3), (3, 2), (6, 1), (12, 1), (24, 1)])
def test_a_device_keeps_a_share_of_the_heads_of_keys_and_at_least_one(n_device, n_kept) -> None:
    (found,) = of_one_device([GROUPED], n_device)
    assert found.cache == LayerCache(n_kept * 24, window=9)
    assert (found.n_kv_head, found.window) == (6, 9)  # those of the model


def test_latents_are_on_every_device() -> None:
    assert of_one_device([LATENT], 8) == (LATENT,)


def test_states_of_heads_are_shared() -> None:
    (found,) = of_one_device([LINEAR], 8)
    assert found.cache == LayerCache(constant=6, constant_float32=12, newest=3)


@pytest.mark.parametrize(
    ("layer", "n_device", "why"),
    [
        (GROUPED, 5, "5 devices cannot share 24 heads"),
        (GROUPED, 4, "4 devices cannot share 6 heads of keys"),
        (LayerAnatomy("state space", 24, cache=LayerCache(constant=48)), 2, "is not known here"),
    ],
)
def test_heads_that_cannot_be_shared_are_an_error(layer, n_device, why) -> None:
    with pytest.raises(OptionError, match=why):
        of_one_device([layer], n_device)
