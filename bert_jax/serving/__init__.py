"""An HTTP server for models: `server` answers requests, `batching` computes their items together."""
