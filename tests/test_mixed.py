"""Products in mixed precision, by XLA and by oneDNN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.kernels import library, mixed


@pytest.fixture(params=["xla", "onednn"])
def form(request, monkeypatch):
    if request.param == "xla":
        monkeypatch.setattr(library, "is_training_available", lambda: False)
    elif not library.is_training_available():
        pytest.skip("oneDNN is not installed (the extra `train`)")


def rounded(x):
    return np.asarray(jnp.asarray(x).astype(jnp.bfloat16).astype(jnp.float32))


@pytest.mark.parametrize("transposed", [False, True])
def test_products_and_gradients_are_those_of_the_rounded_operands(form, transposed):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 5, 24)).astype(np.float32)
    w = rng.standard_normal((16, 24) if transposed else (24, 16)).astype(np.float32)
    g = rng.standard_normal((3, 5, 16)).astype(np.float32)
    y, pull_back = jax.vjp(lambda x, w: mixed.product(x, w, transposed), x, w)
    of_x, of_w = pull_back(jnp.asarray(g))
    right = rounded(w).T if transposed else rounded(w)
    np.testing.assert_allclose(y, rounded(x) @ right, atol=1e-4)
    np.testing.assert_allclose(of_x, rounded(g) @ right.T, atol=1e-4)
    expected = np.einsum("abk,abn->kn", rounded(x), rounded(g))
    np.testing.assert_allclose(of_w, expected.T if transposed else expected, atol=1e-4)
    assert y.dtype == of_x.dtype == of_w.dtype == jnp.float32
