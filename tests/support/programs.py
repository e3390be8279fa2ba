"""Small invented programs in XLA's formats for TPUs and GPUs.

TPU: a loop of 3 layers with a fusion, a slice of stacked parameters, an all-reduce and a kernel without an
estimate, then a gather that overlaps with computation, and a copy. GPU: a loop over stacked weights with
cuBLAS matmuls, attention and an overlapping all-reduce, then a Triton kernel with a matmul, cuDNN's gradient
of attention, and a blocking all-reduce.
"""

from pathlib import Path

TPU, GPU = (
    (Path(__file__).resolve().parents[1] / "testdata" / "hlo" / name).read_text("utf-8")
    for name in ("tpu.txt", "gpu.txt")
)
