"""What orbax leaves behind when it fails prints nothing, and what it logs sets nothing up."""

import subprocess
import sys

import pytest
from support.embeddings import tiny_model

from bert_jax.convert.formats import work_directory

PROGRAM = """
import asyncio, gc, sys
from bert_jax.checkpoint import terminal

async def reads():
    await asyncio.sleep(0)  # goes on in the loop's last round
    await asyncio.gather(never_begins())

async def never_begins():
    pass

async def fails():
    other = asyncio.ensure_future(reads())
    await asyncio.sleep(0)
    raise ValueError("a file is missing")

def fail():
    \"\"\"Fails as orbax does: the loop is closed while tasks wait in it.\"\"\"
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(fails())
    except ValueError as error:
        return error
    finally:
        loop.close()

terminal.quieten_orbax()
error = fail()
{close}
if {collect}:
    del error
    gc.collect()
"""


@pytest.mark.long
@pytest.mark.parametrize("collect", [False, True], ids=["at the end", "before it"])
def test_tasks_of_a_closed_loop_print_nothing(collect):
    assert stderr(collect, "terminal.ignore_unbegun()") == ""


@pytest.mark.long
def test_they_would_print():
    assert "coroutine 'never_begins' was never awaited" in stderr(True, "")


def stderr(collect: bool, close: str) -> str:
    program = PROGRAM.format(collect=collect, close=close)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr


@pytest.mark.long
def test_loading_leaves_the_logging_of_a_program_as_it_is(tmp_path):
    # One that orbax reads; the first message of a program sets up the root logger if nobody else has.
    work_directory.FORMAT.write(tiny_model(tmp_path), tmp_path / "run")
    code = (
        "import logging, sys, bert_jax, bert_jax.training.loop\n"
        "bert_jax.load(sys.argv[1])\n"
        "assert not logging.root.handlers, logging.root.handlers\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s')\n"
        "logging.info('shown')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "shown"
