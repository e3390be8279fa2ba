"""The programs that every config compiles are those that are recorded, and so are the parameters."""

import jax
import jax.numpy as jnp
import pytest
from support import lowering, program_digests, recorded
from support.gate import programs


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return lowering.write_files(tmp_path_factory.mktemp("files"))


@pytest.mark.long
@pytest.mark.parametrize("group", programs.programs(None))
def test_programs(group, files):
    recorded_programs = recorded.read("programs")
    if recorded_programs["jax"] != recorded.jax_version():
        pytest.skip(f"the digests of programs are those of jax {recorded_programs['jax']}")
    found = programs.programs(files)[group]()
    expected = {name: recorded_programs[name] for name in found if name in recorded_programs}
    difference = recorded.differences("programs", expected, found)
    assert not difference, difference


def test_nothing_is_recorded_of_what_is_no_more():
    groups = tuple(programs.programs(None))
    for name in recorded.read("programs"):
        group = name.partition(",")[0] if name.startswith("for ") else name.rpartition(":")[0]
        assert group in groups or ": " not in name, f"{name} is recorded, and no config's"


@pytest.mark.long
def test_parameters(files):
    difference = recorded.differences("parameters", recorded.read("parameters"), programs.parameters(files))
    assert not difference, difference


def digest(function, *args):
    return program_digests.digest(jax.jit(function).lower(*args).compiler_ir())


def loop(factor, inner=jnp.sin):
    def of_loop(x, y):
        def body(carry, row):
            return carry * factor + inner(row), carry + y

        return jax.lax.scan(body, x, jnp.stack([x, x + y]))

    return of_loop


def test_a_number_changes_the_digest():
    x = jnp.ones(4)
    assert digest(loop(2.0), x, x) == digest(loop(2.0), x, x)
    assert digest(loop(2.0), x, x) != digest(loop(2.0000002), x, x)
    assert digest(loop(2.0), x, x) != digest(loop(2.0, jnp.cos), x, x)
    assert digest(loop(2.0), x, x) != digest(loop(2.0), jnp.ones(5), jnp.ones(5))


def test_names_order_and_functions_do_not_change_the_digest():
    x = jnp.ones(4)

    def direct(a, b):
        unused = a + 7  # noqa: F841
        first = jnp.tanh(a) * b
        second = jnp.exp(b)
        return first - second

    def divided(left, right):
        second = jax.jit(lambda value: jnp.exp(value))(right)
        return jax.jit(lambda one, two: jnp.tanh(one) * two)(left, right) - second

    assert digest(direct, x, x) == digest(divided, x, x)
    assert digest(direct, x, x) != digest(lambda a, b: divided(b, a), x, x)


def test_the_arguments_of_nested_loops_are_told_apart():
    def nested(swap):
        def outer(count, x):
            def inner(step, y):
                return y * 2 + (step if swap else count)

            return jax.lax.fori_loop(0, 3, inner, x)

        return lambda x: jax.lax.fori_loop(0, 3, outer, x)

    assert digest(nested(False), jnp.int32(1)) != digest(nested(True), jnp.int32(1))
