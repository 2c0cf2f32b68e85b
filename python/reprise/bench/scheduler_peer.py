"""The scheduler of the PyPI package tokenspeed-scheduler under the loads of `reprise bench scheduler`."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import random
import statistics
import time
from typing import Any

PACKAGE = "tokenspeed-scheduler"
NOTE = "called from Python, two calls a step (next_execution_plan, advance); making specs and events is not timed"
WARM_STEPS = 4


def is_installed() -> bool:
    return importlib.util.find_spec("tokenspeed_scheduler") is not None


class Peer:
    """Each sample() is one of every setting that `ours`, the program's output, has."""

    def __init__(self, ours: dict[str, Any], num_samples: int) -> None:
        self.steps = ours["steps"]
        self.settings = []
        for r in ours["results"]:
            num_requests, prefix_sharing = r["requests"], r["prefix_sharing"]
            prefill_steps = 2 * num_requests * ours["prompt_len"] // (ours["max_num_batched_tokens"] - num_requests)
            max_tokens = (num_samples + 1) * (self.steps + WARM_STEPS) + prefill_steps + num_requests + 64
            decoding = _Load(ours, num_requests, prefix_sharing, max_tokens)
            decoding.submit()
            decoding.step_until_all_decode()
            prefill = _Load(ours, num_requests, prefix_sharing, 1)
            self.settings.append((num_requests, prefix_sharing, decoding, prefill))
        self.samples: list[list[dict[str, float]]] = [[] for _ in self.settings]
        self._sample()  # warms up

    def sample(self) -> None:
        for samples, sample in zip(self.samples, self._sample(), strict=True):
            samples.append(sample)

    def _sample(self) -> list[dict[str, float]]:
        gc.disable()
        try:
            return [
                _measure(decoding, prefill, num_requests, self.steps)
                for num_requests, _, decoding, prefill in self.settings
            ]
        finally:
            gc.enable()

    def result(self) -> dict[str, Any]:
        results = [
            {
                "requests": num_requests,
                "prefix_sharing": prefix_sharing,
                **{name: statistics.median(sample[name] for sample in samples) for name in samples[0]},
            }
            for (num_requests, prefix_sharing, _, _), samples in zip(self.settings, self.samples, strict=True)
        ]
        return {"name": PACKAGE, "version": importlib.metadata.version(PACKAGE), "results": results}


def _measure(decoding: _Load, prefill: _Load, num_requests: int, steps: int) -> dict[str, float]:
    for _ in range(WARM_STEPS):
        decoding.step()
    decode_us = sum(decoding.step() for _ in range(steps)) / steps
    submit_us = prefill.submit()
    times = []
    while prefill.unfinished:
        times.append(prefill.step())
    return {
        "decode_us_per_step": decode_us,
        "decode_us_per_request": decode_us / num_requests,
        "submit_us_per_request": submit_us / num_requests,
        "prefill_steps": len(times),
        "prefill_us_per_step": sum(times) / len(times),
        "prefill_us_per_request": sum(times) / num_requests,
    }


class _Load:
    """Every request that samples gets one token a step, and ends with its first when `max_tokens` is 1."""

    def __init__(self, ours: dict[str, Any], num_requests: int, prefix_sharing: bool, max_tokens: int) -> None:
        import tokenspeed_scheduler as peer

        self.peer = peer
        self.num_requests, self.prompt_len, self.max_tokens = num_requests, ours["prompt_len"], max_tokens
        self.random = random.Random(ours["seed"])
        self.shared_prefix = self._tokens(self.prompt_len // 2 if prefix_sharing else 0)
        self.next_id = 0
        self.unfinished: set[str] = set()
        page_size = ours["page_size"]
        config = peer.SchedulerConfig()
        pages = num_requests * ((self.prompt_len + max_tokens + page_size - 1) // page_size + 1)
        config.num_device_pages = 2 * pages + 1  # both groups draw on one pool, page 0 is its null page
        config.num_host_pages = 0
        config.num_snapshot_pages = 1
        config.disable_l2_cache = True
        config.max_scheduled_tokens = ours["max_num_batched_tokens"]
        config.max_batch_size = num_requests
        config.prefix_granularity = page_size
        config.disable_prefix_cache = not prefix_sharing
        config.enable_mixed_prefill_decode = True
        common = {"block_granularity": page_size, "total_pages": config.num_device_pages}
        config.cache_groups = [
            peer.CacheGroupConfig(
                group_id="window", attn_kind=peer.AttnKind.SlidingWindow, sliding_window_tokens=128, **common
            ),
            peer.CacheGroupConfig(group_id="compressed", attn_kind=peer.AttnKind.Full, **common),
        ]
        self.scheduler = peer.Scheduler(config)

    def submit(self) -> float:
        """Submits all requests; microseconds, without making them."""
        specs = []
        for _ in range(self.num_requests):
            spec = self.peer.RequestSpec()
            spec.request_id = str(self.next_id)
            spec.tokens = self.shared_prefix + self._tokens(self.prompt_len - len(self.shared_prefix))
            spec.max_new_tokens = self.max_tokens
            specs.append(spec)
            self.unfinished.add(spec.request_id)
            self.next_id += 1
        start = time.thread_time()
        self.scheduler.submit_requests(specs)
        return 1e6 * (time.thread_time() - start)

    def step(self) -> float:
        """Plans and commits one step; microseconds of this thread on a processor, as the program counts them."""
        start = time.thread_time()
        plan = self.scheduler.next_execution_plan()
        planned = time.thread_time()
        self.batch = next((batch for batch in plan.forward if batch.request_ids), None)
        if self.batch is None:
            raise RuntimeError(f"{PACKAGE} planned an empty step with {len(self.unfinished)} requests unfinished")
        events = self._events(self.batch)
        committing = time.thread_time()
        self.scheduler.advance(events)
        return 1e6 * (planned - start + time.thread_time() - committing)

    def step_until_all_decode(self) -> None:
        while True:
            self.step()
            if self.batch.num_extends() == 0 and len(self.batch.request_ids) == self.num_requests:
                return

    def _events(self, batch: Any) -> Any:
        forward_event = self.peer.ForwardEvent
        events = self.peer.ExecutionEvent()
        num_extends = batch.num_extends()
        ends = [
            start + rows == length
            for start, rows, length in zip(
                batch.extend_prefix_lens[:num_extends],
                batch.input_lengths[:num_extends],
                batch.prefill_lengths[:num_extends],
                strict=True,
            )
        ]
        for row, request_id in enumerate(batch.request_ids):
            result = forward_event.ExtendResult()
            result.request_id = request_id
            result.tokens = [7] if row >= num_extends or ends[row] else []
            events.add_event(result)
            if self.max_tokens == 1 and result.tokens:
                finish = forward_event.Finish()
                finish.request_id = request_id
                events.add_event(finish)
                self.unfinished.remove(request_id)
            elif row >= num_extends:  # the row that ends a prompt has reserved its decode row already
                reserve = forward_event.UpdateReserveNumTokens()
                reserve.request_id = request_id
                reserve.reserve_num_tokens_in_next_schedule_event = 1
                events.add_event(reserve)
        return events

    def _tokens(self, count: int) -> list[int]:
        return [self.random.randrange(100000) for _ in range(count)]
