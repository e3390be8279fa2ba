"""A Google Cloud Storage of this machine, in memory, for gcsfs and for TensorStore."""

import contextlib
import os

BUCKET = "bucket"


@contextlib.contextmanager
def bucket():
    """Yields gs://BUCKET; processes that are started inside see it, too."""
    import fsspec
    from gcp_storage_emulator import server

    emulator = server.create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    emulator.start()
    listening = emulator._api._httpd
    # A client that has read enough closes its connection, of which the server would print a traceback.
    listening.handle_error = lambda request, address: None
    url = f"http://127.0.0.1:{listening.server_address[1]}"
    changed = {
        "STORAGE_EMULATOR_HOST": url,  # gcsfs
        "TENSORSTORE_GCS_HTTP_URL": url,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",  # TensorStore
        "NO_GCE_CHECK": "true",  # google.auth would look for the machine's own account
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    fsspec.filesystem("gs").clear_instance_cache()
    try:
        yield f"gs://{BUCKET}"
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        fsspec.filesystem("gs").clear_instance_cache()
        emulator.stop()
