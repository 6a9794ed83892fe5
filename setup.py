"""Installs the package `specdec` and, as an editable checkout, the scripts of `experiments`."""

from pathlib import Path

from setuptools import find_packages, setup

CORE = [
    "absl-py",
    "flax>=0.12.8",
    "gin-config>=0.5.0",
    "jax>=0.10.2",
    "msgpack",
    "numpy",
    "optax>=0.2.8",
    "orbax-checkpoint>=0.12.8",
    "protobuf",
    "rich",
    "sacrebleu",
    "safetensors>=0.8",
    "sentencepiece",
    "tensorstore",
]

EXTRAS = {
    "cuda": ["jax[cuda12]"],
    "tpu": ["jax[tpu]"],
    # Mixed precision on a CPU: products in bfloat16 by oneDNN.
    "train": ["onednn-cpu-gomp", "onednn-devel-cpu-gomp"],
    # Imported only where such data is read: seqio alone takes ten seconds to import.
    "tasks": ["seqio", "tensorflow-datasets", "importlib_resources", "rouge-score"],
    # t5x itself is not on PyPI (its README says how to install it): what it needs from there.
    "t5x": [
        "cached_property",
        "chex",
        "fiddle",
        "jaxtyping",
        "tensorboard",
        "grain",
        "clu",
        "seqio",
    ],
    "baselines": ["ctranslate2", "torch==2.13.0", "transformers>=5.24"],
    "plots": ["matplotlib"],
    "notebooks": ["matplotlib", "nbclient", "nbformat", "ipykernel"],
    "test": ["hypothesis", "matplotlib", "pytest", "pytest-xdist", "ruff"],
}

setup(
    name="specdec",
    version="0.1.0",
    description="Speculative decoding of T5 in JAX: the target's own law, in fewer target runs",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=["specdec", "specdec.*", "experiments", "experiments.*"]),
    package_data={"specdec.kernels": ["*.cc", "*.h"]},
    install_requires=CORE,
    extras_require=EXTRAS,
)
