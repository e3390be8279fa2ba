"""A Google Cloud Storage of this machine, in memory, for gcsfs and for TensorStore."""

import contextlib
import os

BUCKET = "bucket"


@contextlib.contextmanager
def bucket():
    """Yields gs://BUCKET; processes that are started inside see it, too."""
    import fsspec
    from gcp_storage_emulator import server

    _add_generations(server)
    emulator = server.create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    emulator.start()
    listening = emulator._api._httpd
    # A client that has read enough closes its connection, of which the server would print a traceback.
    listening.handle_error = lambda request, address: None
    listening.socket.listen(128)  # it queues 5 connections, and TensorStore opens 32 at a time
    url = f"http://127.0.0.1:{listening.server_address[1]}"
    changed = {
        "STORAGE_EMULATOR_HOST": url,  # gcsfs
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # it asks Google itself of what kind a bucket is
        "TENSORSTORE_GCS_HTTP_URL": url,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",  # TensorStore
        "NO_GCE_CHECK": "true",  # google.auth would look for the machine's own account
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    fsspec.get_filesystem_class("gs").clear_instance_cache()
    try:
        yield f"gs://{BUCKET}"
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        emulator.stop()


def _add_generations(server):
    """Adds what the emulator lacks: for TensorStore's OCDBT, a download tells the generation of an object,
    and an upload may depend on it; for gcsfs, an object can be moved."""
    from gcp_storage_emulator.handlers import objects

    if hasattr(objects, "generations_added"):
        return
    objects.generations_added = True
    download, insert = objects.download, objects.insert

    def current(request, storage, name):
        found = storage.objects.get(request.params["bucket_name"], {}).get(name)
        return found["generation"] if found else "0"

    def download_with_generation(request, response, storage, *args, **kwargs):
        response["x-goog-generation"] = current(request, storage, request.params["object_id"])
        download(request, response, storage, *args, **kwargs)

    def insert_if_unchanged(request, response, storage, *args, **kwargs):
        expected, name = request.query.get("ifGenerationMatch"), request.query.get("name")
        if expected and name and expected[0] != current(request, storage, name[0]):
            response.status = server.HTTPStatus.PRECONDITION_FAILED
            return
        insert(request, response, storage, *args, **kwargs)

    def move(request, response, storage, *args, **kwargs):
        request.params["dest_bucket_name"] = request.params["bucket_name"]
        objects.copy(request, response, storage)
        objects.delete(request, response, storage)

    names = r"/b/(?P<bucket_name>[-.\w]+)/o/(?P<object_id>.*[^/]+)/moveTo/o/(?P<dest_object_id>.*[^/]+)$"
    server.HANDLERS = (("^/storage/v1" + names, {server.POST: move}), *server.HANDLERS)
    objects.download, objects.insert = download_with_generation, insert_if_unchanged
    for _, handlers in server.HANDLERS:
        for method, handler in handlers.items():
            handlers[method] = {download: objects.download, insert: objects.insert}.get(handler, handler)
