"""The programs and the parameters of every config equal the recorded ones."""

import jax
import jax.numpy as jnp
import pytest
from support import lowering, program_digests, recorded


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return lowering.write_files(tmp_path_factory.mktemp("files"))


@pytest.mark.long
@pytest.mark.parametrize("group", lowering.programs(None))
def test_programs(group, files):
    recorded_programs = recorded.read("programs")
    if recorded_programs["jax"] != recorded.jax_version():
        pytest.skip(f"the digests of programs are those of jax {recorded_programs['jax']}")
    found = lowering.programs(files)[group]()
    expected = {name: recorded_programs[name] for name in found if name in recorded_programs}
    difference = recorded.differences("programs", expected, found)
    assert not difference, difference


def test_nothing_is_recorded_of_what_is_no_more():
    groups = tuple(lowering.programs(None))
    for name in recorded.read("programs"):
        group = name.partition(",")[0] if name.startswith("for ") else name.rpartition(":")[0]
        assert group in groups or ": " not in name, f"{name} is recorded, and no config's"


@pytest.mark.long
def test_parameters(files):
    difference = recorded.differences("parameters", recorded.read("parameters"), lowering.parameters(files))
    assert not difference, difference


def digest(function, *args):
    return program_digests.digest(jax.jit(function).lower(*args).compiler_ir())


def test_what_changes_a_digest():
    x = jnp.ones(4)

    def loop(factor, inner=jnp.sin):
        def body(carry, row):
            return carry * factor + inner(row), carry + row

        return lambda x: jax.lax.scan(body, x, jnp.stack([x, x + 1]))

    def direct(a, b):
        first = jnp.tanh(a) * b
        return first - jnp.exp(b)

    def divided(left, right):
        second = jax.jit(jnp.exp)(right)
        return jax.jit(lambda one, two: jnp.tanh(one) * two)(left, right) - second

    assert digest(loop(2.0), x) == digest(loop(2.0), x)
    assert digest(loop(2.0), x) != digest(loop(2.0000002), x)
    assert digest(loop(2.0), x) != digest(loop(2.0, jnp.cos), x)
    # Names, functions and the order of operations do not.
    assert digest(direct, x, x) == digest(divided, x, x)
    assert digest(direct, x, x) != digest(lambda a, b: divided(b, a), x, x)
