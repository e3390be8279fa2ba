import jax
import pytest

from bert_jax.parallel import sharding
from bert_jax.training import auto_accumulation
from bert_jax.training.auto_accumulation import CompileResult

FIXED, GRADIENTS, ROWS = 100.0, 50.0, 800.0


class Compiler:
    """Compiles programs that need 100 bytes of arguments, 50 of gradients, and 800 divided by the parts."""

    def __init__(self, refuses_above=None, tells=True):
        self.tried, self._refuses_above, self._tells = [], refuses_above, tells

    def __call__(self, parts):
        self.tried.append(parts)
        needed = FIXED + GRADIENTS + ROWS / parts
        if self._refuses_above is not None and needed > self._refuses_above:
            return CompileResult(parts, needed if self._tells else None, None)
        return CompileResult(parts, needed, f"program of {parts}")

    def search(self, candidates, limit):
        return auto_accumulation.search(candidates, self, FIXED, limit)


@pytest.mark.parametrize(
    "limit,parts", [(950, 1), (949, 2), (550, 2), (549, 4), (350, 4), (250, 8), (201, 16), (200, 16)]
)
def test_the_fewest_parts_that_fit(limit, parts):
    found = Compiler().search((1, 2, 4, 8, 16), limit)
    assert (found.microbatches, found.program) == (parts, f"program of {parts}") and found.fits(limit)


@pytest.mark.parametrize("tells", [True, False])
def test_programs_that_the_compiler_refuses_do_not_fit(tells):
    compiler = Compiler(refuses_above=300, tells=tells)
    found = compiler.search((1, 2, 4, 8, 16), 10_000)
    assert found.microbatches == 8 and found.needed == 250
    assert compiler.tried == [1, 2, 4, 8]  # the limit rules none out


def refusing(message):
    def compile_():
        raise jax.errors.JaxRuntimeError(message)

    return auto_accumulation.try_to_compile(2, "tpu", compile_)


def test_errors_of_compilers():
    text = "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Used 20.50G of 15.75G hbm."
    assert refusing(text) == CompileResult(2, 20.5 * 2**30, None)
    assert refusing("RESOURCE_EXHAUSTED: Out of memory while trying to allocate") == CompileResult(
        2, None, None
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        refusing("INTERNAL: a bug")


def test_parts_divide_the_rows_of_each_device():
    mesh = sharding.make_mesh(data=4, fsdp=2)
    assert auto_accumulation.divisors((96,), mesh) == [1, 2, 3, 4, 6, 12]
    assert auto_accumulation.divisors((96, 64), mesh) == [1, 2, 4] and auto_accumulation.divisors(
        (8,), mesh
    ) == [1]
