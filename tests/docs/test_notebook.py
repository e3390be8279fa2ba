"""The notebook of docs/tutorials: all of its code cells, on a CPU."""

import re
import sys

import pytest
from support import pages

NOTEBOOK = pages.REPOSITORY / "docs" / "tutorials" / "bert_jax.ipynb"
QUICK = {"STEPS": 20, "EPOCHS": 1}


def quick_cells():
    for name, source in pages.cells(NOTEBOOK):
        for constant, value in QUICK.items():
            source = re.sub(rf"^{constant} = \d+", f"{constant} = {value}", source, flags=re.M)
        yield name, source


@pytest.mark.long
def test_the_cells_run(tmp_path):
    script = [pages.NOTEBOOK]
    for name, source in quick_cells():
        script += [f"print('cell', {name!r}, flush=True)", pages.as_python(source)]
    script.append("assert set(predictor.predict_rows(['a'])[0]) == {'prediction', 'probabilities'}")
    place = pages.Place(tmp_path / "notebook")
    output = place.run([sys.executable, "-"], "\n".join(script))
    assert output.count("\ncell ") + 1 == len(pages.cells(NOTEBOOK))
    assert re.search(r"^step +20 ", output, re.M) and "picture curves.png" in output
    assert (place.path / "classifier" / "best.json").exists()
    assert (place.path / "exported.tar.gz").stat().st_size > 100_000
