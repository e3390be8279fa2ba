"""XLA_FLAGS for processes of a test, which may import jax or not."""

import os
import re


def with_devices(count):
    """Returns this process's flags with another number of devices on the CPU."""
    return re.sub(r"(device_count)=\d+", rf"\1={count}", os.environ["XLA_FLAGS"])
