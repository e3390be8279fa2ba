"""What orbax leaves behind when it fails prints nothing: tests of bert_jax.checkpoint.terminal."""

import subprocess
import sys

import pytest

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
    assert stderr(collect, "terminal.close_unbegun()") == ""


@pytest.mark.long
def test_they_would_print():
    assert "coroutine 'never_begins' was never awaited" in stderr(True, "")


def stderr(collect: bool, close: str) -> str:
    program = PROGRAM.format(collect=collect, close=close)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr
