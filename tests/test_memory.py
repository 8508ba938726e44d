"""What large batches leave on the heap goes back to the system."""

import re
import subprocess
import sys
from pathlib import Path

CODE = """
import re, sys
from learner.run.memory import give_back

def resident():
    return int(re.search(r"RssAnon:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1e3

kept = [(bytearray(60_000), bytearray(100)) for _ in range(2000)]
before = resident()
kept = [small for _, small in kept]  # one small object behind each large one: the heap's end does not come down
freed = resident()
give_back()
print(before - freed, before - resident())
"""


def test_freed_memory_between_small_objects_is_given_back():
    root = Path(__file__).parents[1]
    out = subprocess.run([sys.executable, "-c", CODE], cwd=root, capture_output=True, text=True, timeout=60, check=True)
    by_itself, given_back = map(float, re.findall(r"-?[\d.]+", out.stdout))
    assert given_back > 100 > 2 * by_itself
