import time

import pytest

from afd_dse.dashboard.app import HOST, Session, server
from afd_dse.dashboard.runs import Run
from afd_dse.errors import InputError
from tests.results.examples import SMALL, answer, job


def ended(run: Run, seconds: float = 120.0) -> Run:
    until = time.monotonic() + seconds
    while run.running and time.monotonic() < until:
        run.poll()
        time.sleep(0.05)
    assert not run.running
    return run


def test_a_search_in_a_process_gives_the_answer_of_the_api_and_tells_how_far_it_is() -> None:
    run = Run(job("TINY").model_dump(mode="json"))
    run.start()
    ended(run)
    assert run.error == ""
    assert run.result is not None
    assert run.result.document["best"] == answer("TINY").document["best"]
    assert run.result.document["what_if"]
    assert 0 < run.evaluated <= answer("TINY").document["evaluated"]
    assert run.mode == "what would change the answer"
    assert len(run.result.candidates) == len(answer("TINY").candidates)


def test_a_search_that_fails_says_why() -> None:
    run = Run({**SMALL, "model": "no/such-model"})
    run.start()
    assert "model" in ended(run).error


def test_a_search_can_be_ended() -> None:
    run = Run(job().model_dump(mode="json"))
    run.start()
    run.cancel()
    assert not run.running
    assert run.error == "cancelled"


def test_a_port_in_use_is_an_input_error() -> None:
    first = server(Session(), 0)
    try:
        with pytest.raises(InputError, match="--port"):
            server(Session(), first.port)
        assert first.host == HOST
    finally:
        first.server_close()
