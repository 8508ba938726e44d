"""A run in lock-step against a real vLLM server, killed and resumed: the very same weights, to the last bit."""

from __future__ import annotations

import pytest

from learner.servers.probe import wait_healthy
from learner.servers.processes import Child, terminate
from learner.servers.serving import server_command, server_urls
from tests import lockstep
from tests.wire_samples import free_port

pytestmark = pytest.mark.timeout(900)

STEPS = 4
#: The built-in world and policy, as ``make train`` has them.
OPTIONS = {
    "run": {"steps": STEPS},
    "env": {"path": "envs.multihop:MultiHopQA", "train": ["hotpot", "wiki2"], "eval": ["hotpot"]},
    "learner": {"group_size": 4},
    "eval": {"every": 0, "size": 2, "final_size": 2},
}


def config(folder, server: str):
    return lockstep.config(folder, server, **OPTIONS)


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("server")
    served = config(folder, "http://127.0.0.1:1").model_copy(deep=True)
    served.server.urls, served.server.port = [], free_port()
    served.server.kv_cache_gib, served.server.max_num_seqs = 0.1, 32
    argv, env = server_command(served, 0)
    child = Child("server", argv, env, folder / "server.log")
    child.start()
    try:
        wait_healthy(server_urls(served)[0], 300, lambda: child.exit_code is None, print)
        yield server_urls(served)[0]
    finally:
        terminate([child], grace_s=10)


def test_a_killed_run_goes_on_to_the_very_same_weights(url, tmp_path):
    """The server is the same one for both runs, so it must also forget what the first one taught it."""
    with lockstep.running(config(tmp_path / "undisturbed", url)) as whole:
        whole.finish()
    with lockstep.running(config(tmp_path / "killed", url)) as run:
        run.until(lambda: len(run.steps()) >= 3)
        run.learner.kill()
        run.learner.join()
        run.resume()
        run.finish()
    assert "resumed at version 2" in run.words()
    name = "export/model.safetensors"
    assert (run.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    for figure in ("loss", "grad_norm", "reward", "tokens", "logprob_mismatch_max"):
        assert [step[figure] for step in run.steps()] == [step[figure] for step in whole.steps()], figure
    assert whole.steps()[-1]["grad_norm"] > 0
    assert any(step["reward"] > 0 for step in whole.steps())
