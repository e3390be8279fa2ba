"""Export of models for other runtimes: `onnx_model` builds ONNX graphs, `folder` writes and verifies them."""
