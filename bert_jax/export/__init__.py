"""Export of models for other runtimes: `folder` writes and verifies ONNX graphs and StableHLO."""
