"""In every timeline that these tests make the host's spans lie inside each other or apart."""

import asyncio

import pytest

import loaderviz as lv
from loaderviz.emulator.runtime import Runtime
from loaderviz.timeline import Kind


def check_nesting(timeline):
    """On one host lane two spans may be nested or apart, but never cross; a wait lies inside what waits."""
    stacks: dict[int, list] = {}
    for index in range(len(timeline)):
        span = timeline.row(index)
        if span.lane.group != "host" or span.kind == Kind.RANGE or not span.duration:
            continue
        stack = stacks.setdefault(int(timeline.lane[index]), [])
        while stack and stack[-1].end <= span.start:
            stack.pop()
        assert not stack or span.end <= stack[-1].end, f"{span} crosses {stack[-1]}"
        if stack and span.kind == Kind.OPERATOR:
            assert stack[-1].kind in (Kind.OPERATOR, Kind.FETCH, Kind.PIN), f"{span} in {stack[-1]}"
        stack.append(span)


@pytest.fixture(autouse=True)
def no_loop_of_a_browser():
    """Chromium's driver leaves its event loop as the one that runs in this thread, as long as the browser is open."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(running)


@pytest.fixture(autouse=True, scope="module")
def host_spans_are_nested():
    original = Runtime.timeline

    def timeline(self, context=None):
        result = original(self, context)
        check_nesting(result)
        return result

    Runtime.timeline = timeline
    yield
    Runtime.timeline = original


@pytest.fixture
def recording():
    """The test runs in the block of this recording."""
    with lv.record(on="a100") as running:
        yield running
