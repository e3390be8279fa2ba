"""Small programs in the form that XLA gives for TPUs and GPUs, made up for these tests.

TPU: a loop of 3 layers with a fusion, a slice of stacked parameters, an all-reduce and a kernel without an
estimate; then a gather beside computation, and a copy. GPU: a loop over stacked weights, with products by
cuBLAS, attention and an all-reduce beside it; then a Triton kernel with a product in it, the gradient of
attention by cuDNN, and an all-reduce that is waited for.
"""

from pathlib import Path

TPU, GPU = (
    (Path(__file__).resolve().parents[1] / "testdata" / "hlo" / name).read_text("utf-8")
    for name in ("tpu.txt", "gpu.txt")
)
