"""EngineLoop from Python: callbacks on the loop's thread, and whoever waits for it does not hold the GIL."""

from __future__ import annotations

import _thread
import atexit
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from reprise import _reprise as binding

DATA = Path(__file__).resolve().parent.parent / "data"
PROMPT = list(range(3, 40))


@pytest.fixture
def engine() -> binding.Engine:
    config = binding.EngineConfig(page_size=4, max_num_seqs=4, max_model_len=2048, num_threads=1)
    return binding.Engine.load(str(DATA / "v41-tiny"), config)


def request(max_tokens: int, prompt: list[int] = PROMPT) -> binding.Request:
    return binding.Request(prompt, binding.SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True))


def tokens_by_hand(engine: binding.Engine, wanted: binding.Request) -> list[int]:
    engine.submit(wanted)
    tokens = []
    while engine.has_unfinished():
        for output in engine.step():
            tokens += output.new_token_ids
    return tokens


def test_callbacks_get_what_steps_by_hand_give(engine: binding.Engine) -> None:
    requests = [request(3 + i, PROMPT[: 5 + 9 * i]) for i in range(4)]
    want = [tokens_by_hand(engine, r) for r in requests]
    outputs: dict[int, list[binding.RequestOutput]] = {}
    threads = set()

    def on_output(output: binding.RequestOutput) -> None:
        threads.add(threading.get_ident())
        outputs.setdefault(output.id, []).append(output)

    with binding.EngineLoop(engine) as loop:
        ids = [loop.submit(r, on_output) for r in requests]
        assert loop.drain()
        assert loop.is_running()
    assert not loop.is_running()
    assert [[t for output in outputs[i] for t in output.new_token_ids] for i in ids] == want
    assert all([output.finished for output in outputs[i]].count(True) == 1 and outputs[i][-1].finished for i in ids)
    assert threads and threading.get_ident() not in threads


def test_stop_and_start_again(engine: binding.Engine) -> None:
    want = tokens_by_hand(engine, request(12))
    loop, got = binding.EngineLoop(engine), []

    def on_output(output: binding.RequestOutput) -> None:
        got.extend(output.new_token_ids)
        if len(got) == 3:
            loop.stop()

    loop.submit(request(12), on_output)
    loop.start()
    assert not loop.drain()
    assert len(got) == 3
    with pytest.raises(ValueError, match="wanted a running loop but 1 requests wait"):
        loop.drain()
    with loop:
        assert loop.drain()
    assert got == want


def test_a_callback_that_raises_ends_its_request_only(engine: binding.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    reported, got = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: reported.append(args.exc_value))

    def fail(output: binding.RequestOutput) -> None:
        raise KeyError("no")

    with binding.EngineLoop(engine) as loop:
        loop.submit(request(2000), fail)
        loop.submit(request(4), lambda output: got.extend(output.new_token_ids))
        assert loop.drain()
    assert len(got) == 4
    assert [str(error) for error in reported] == ["'no'"]
    assert all(group.free_pages == group.num_pages for group in engine.stats().cache_groups)


def test_refusals(engine: binding.Engine) -> None:
    with binding.EngineLoop(engine) as loop:
        with pytest.raises(ValueError, match=r"\[step\] wanted an engine that is stepped by hand but a loop runs it"):
            engine.step()
        with pytest.raises(ValueError, match=r"\[start\] wanted an engine that no loop runs"):
            binding.EngineLoop(engine).start()
        with pytest.raises(ValueError, match="wanted a prompt of at least 1 token"):
            loop.submit(binding.Request([]), print)
        with pytest.raises(TypeError):
            loop.submit(request(1), None)
        assert loop.drain()


def test_dropping_a_running_loop_stops_it(engine: binding.Engine) -> None:
    loop, seen = binding.EngineLoop(engine), threading.Event()
    loop.submit(request(2000), lambda output: seen.set())
    loop.start()
    assert seen.wait(60)
    del loop  # its thread wants the GIL for callbacks all the while
    assert engine.has_unfinished()
    assert engine.abort_all() == 1


def run_script(folder: Path, script: str) -> None:
    """In a process of its own, which must end well: a thread that asked for the GIL of a dying interpreter, or that is
    destroyed before it has ended, would end it by a signal."""
    setup = f"""
import threading, time, weakref
from reprise import _reprise as binding
config = binding.EngineConfig(page_size=4, max_num_seqs=4, max_model_len=4000, num_threads=1)
engine = binding.Engine.load({str(DATA / "v41-tiny")!r}, config)
seen = threading.Event()

def request(max_tokens):
    return binding.Request([5], binding.SamplingParams(max_tokens=max_tokens, ignore_eos=True))
"""
    (folder / "script.py").write_text(setup + script)
    done = subprocess.run(
        [sys.executable, str(folder / "script.py")],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": str(Path(binding.__file__).parent.parent), "OMP_NUM_THREADS": "1"},
    )
    # nanobind may name on stderr what an unfinished request's callback keeps alive.
    assert done.returncode == 0, done.stderr
    assert "terminate called" not in done.stderr


def test_a_loop_that_still_runs_at_exit(tmp_path: Path) -> None:
    script = """
loop = binding.EngineLoop(engine)
loop.submit(request(3900), lambda output: seen.set())
loop.start()
assert seen.wait(60)
"""
    run_script(tmp_path, script)


SERVE = """
def serve():
    loop = binding.EngineLoop(engine)
    def on_output(output, loop=loop):
        if output.finished: seen.set()
    loop.submit(request(5), on_output)
    loop.start()
    return weakref.ref(loop)
dropped = serve()
assert seen.wait(60)
"""


def test_a_callback_that_holds_the_last_reference_to_the_loop(tmp_path: Path) -> None:
    script = """
deadline = time.monotonic() + 60
while dropped() is not None:
    assert time.monotonic() < deadline
    time.sleep(0.01)
while True:
    try:
        engine.step()
        break
    except ValueError:  # the loop runs to the end of its step
        assert time.monotonic() < deadline
        time.sleep(0.01)
engine.submit(request(3))
while engine.has_unfinished(): engine.step()
assert engine.stats().num_finished == 2
serve()
del engine  # the loop holds the last reference
"""
    run_script(tmp_path, SERVE + script)


def test_a_loop_dropped_by_its_callback_while_the_process_exits(tmp_path: Path) -> None:
    run_script(tmp_path, SERVE)


def test_a_callback_that_drops_the_loop_it_runs_in(tmp_path: Path) -> None:
    script = """
loops = [binding.EngineLoop(engine)]
def on_output(output):
    loops.clear()
    seen.set()
loops[0].submit(request(3900), on_output)
loops[0].start()
assert seen.wait(60)
"""
    run_script(tmp_path, script)


def test_a_loop_leaves_nothing_at_exit(engine: binding.Engine) -> None:
    before = atexit._ncallbacks()
    for _ in range(3):
        with binding.EngineLoop(engine) as loop:
            loop.submit(request(1), lambda output: None)
            assert loop.drain()
    assert atexit._ncallbacks() == before


def test_ctrl_c_ends_drain(engine: binding.Engine) -> None:
    release, returned = threading.Event(), threading.Event()

    def block(output: binding.RequestOutput) -> None:
        release.wait(20)
        returned.set()

    with binding.EngineLoop(engine) as loop:
        loop.submit(request(2), block)
        threading.Timer(0.2, _thread.interrupt_main).start()
        with pytest.raises(KeyboardInterrupt):
            loop.drain()
        assert not returned.is_set(), "the wait was over before"
        release.set()
        assert loop.drain()
