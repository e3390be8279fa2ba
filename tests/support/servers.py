"""`bert-jax serve` in a process of its own."""

import os
import re
import subprocess
import sys
import threading

from support import xla_flags


class Running:
    """A server that is ready, with the attributes `process` and `port`."""

    def __init__(self, *flags):
        command = [sys.executable, "-m", "bert_jax", "serve", "--port=0", *map(str, flags)]
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": xla_flags.with_devices(1),
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "PYTHONPATH": os.getcwd(),
        }
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        lines, self.port = [], 0
        for line in self.process.stderr:
            lines.append(line)
            if ready := re.search(r"ready: http://127.0.0.1:(\d+) answers", line):
                self.port = int(ready[1])
                break
        assert self.port, "".join(lines)
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
