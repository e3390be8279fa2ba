"""Hardware that a step is estimated for: data sheets of TPUs and GPUs, and devices to compile for."""
