"""What large batches leave on the heap goes back to the system."""

import re
import subprocess
import sys
from pathlib import Path

CODE = """
import re, sys, time
from learner.run.memory import given_back_when_idle

def resident():
    return int(re.search(r"RssAnon:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1e3

kept = [(bytearray(60_000), bytearray(600)) for _ in range(2000)]
before = resident()
kept = [small for _, small in kept]  # one small object behind each large one: the heap's end does not come down
freed = resident()
with given_back_when_idle(after_s=60):
    time.sleep(0.3)
busy = resident()
with given_back_when_idle(after_s=0.05):
    time.sleep(0.3)
print(before - freed, before - busy, before - resident())
"""


def test_who_waits_gives_back_what_lies_free_between_small_objects():
    root = Path(__file__).parents[1]
    out = subprocess.run([sys.executable, "-c", CODE], cwd=root, capture_output=True, text=True, timeout=60, check=True)
    by_itself, busy, given_back = map(float, re.findall(r"-?[\d.]+", out.stdout))
    assert given_back > 100 > 2 * max(by_itself, busy)
