"""Every module can be imported without the extras; features that need one name the command to install it."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.errors import UserError, check_installed, optional_imports

# The packages of the extras in setup.py, except tensorflow, whose presence other packages check.
OPTIONAL = ("apache_beam gcsfs onnx onnxruntime py3langid rensa starlette uvicorn wandb").split()

CHECK = Path(__file__).parents[1] / ".ci/check-imports"
WITHOUT = """
import runpy, sys
for name in {optional}:
    sys.modules[name] = None  # makes its import fail
runpy.run_path({check!r}, run_name="__main__")
"""


@pytest.mark.long
def test_every_module_is_imported_without_the_extras():
    """Modules that are imported at first use can be imported too, or the error names their extra."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    program = WITHOUT.format(optional=OPTIONAL, check=str(CHECK))
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    line, *failed = done.stdout.splitlines()
    assert line.startswith("missing here, and reported with the name of their extra:") and not failed
    for name in ("onnxruntime", "bert_jax.serving.server", "wandb"):
        assert f" {name}," in f"{line},"


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "drawing", None)
    with optional_imports("search"):
        from drawing import figure
    message = (
        "this command needs the package drawing, which is not installed; "
        "install the extra `search`: pip install '.[search]' in the clone"
    )
    for use in (lambda: figure.Figure, lambda: check_installed("drawing", "search")):
        with pytest.raises(UserError) as error:
            use()
        assert str(error.value) == message


def test_a_package_that_is_broken_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "broken_package.py").write_text("raise ImportError('libdraw.so: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    with optional_imports("search"):
        import broken_package
    with pytest.raises(ImportError, match=r"libdraw.so: no such file"):
        _ = broken_package.anything


def test_the_quick_start_has_every_extra():
    page = (Path(__file__).parents[1] / "docs" / "quickstart.md").read_text()
    table = page.partition("| extra |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}
    extras = importlib.metadata.metadata("bert-jax").get_all("Provides-Extra")
    assert named == set(extras) - {"cpu", "dev"}  # cpu adds nothing, and make install installs dev
