"""A server for models: `app` answers HTTP requests, `batching` collects them, `services` compute."""
