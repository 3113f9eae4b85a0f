"""Engines share themselves evenly: base 10 tokens/s, peak 10 tokens/s, so n requests run at 10/n each."""

from windrow.sim.clock import Clock
from windrow.sim.config import Engines
from windrow.sim.engines import Engine, Pace, Request
from windrow.types import AttemptId

EVEN = Pace.of(Engines(base_tokens_per_s=10, peak_tokens_per_s=10, prefill_tokens_per_s=100))


class Bench:
    """One engine and the times at which it answered."""

    def __init__(self, pace: Pace | None = EVEN, capacity: int = 4) -> None:
        self.clock = Clock()
        self.answers: list[tuple[int, float]] = []
        self.engine = Engine("e0", pace, capacity, self.clock, self.answer)

    def answer(self, request: Request) -> None:
        self.answers.append((request.attempt.index, round(self.clock.now, 6)))

    def ask(self, number: int, tokens: float, read: float = 0.0) -> Request:
        request = Request(AttemptId(0, number), tokens, read, context=read)
        self.engine.start(request)
        return request

    def wait(self, until: float) -> None:
        while self.clock.next_time <= until:
            self.clock.jump()
        self.clock.now = until


def test_a_request_alone_runs_at_the_base_speed():
    bench = Bench()
    bench.ask(0, 50)
    bench.wait(9)
    assert bench.answers == [(0, 5.0)]


def test_two_requests_share_the_engine():
    """Both at 5 tokens/s until the short one is done after 4 s; then the long one has 30 left at 10 tokens/s."""
    bench = Bench()
    bench.ask(0, 50)
    bench.ask(1, 20)
    bench.wait(20)
    assert bench.answers == [(1, 4.0), (0, 7.0)]


def test_a_late_request_slows_the_first_one_down():
    """10 tokens in the first second; then 10 more each in 2 s: both are done at 3 s."""
    bench = Bench()
    bench.ask(0, 20)
    bench.wait(1)
    bench.ask(1, 10)
    bench.wait(20)
    assert bench.answers == [(0, 3.0), (1, 3.0)]


def test_a_higher_peak_lets_requests_overlap():
    """Each token takes 1/10 + 1/40 s when two run: 8 tokens/s each."""
    bench = Bench(Pace.of(Engines(base_tokens_per_s=10, peak_tokens_per_s=40)))
    bench.ask(0, 16)
    bench.ask(1, 16)
    bench.wait(9)
    assert bench.answers == [(0, 2.0), (1, 2.0)]


def test_reading_costs_time_before_generating():
    bench = Bench()
    bench.ask(0, 10, read=200)
    bench.wait(9)
    assert bench.answers == [(0, 3.0)]


def test_a_suspended_engine_pauses_and_goes_on():
    bench = Bench()
    bench.ask(0, 30)
    bench.wait(1)
    bench.engine.suspend("interrupt")
    bench.ask(1, 10)
    bench.wait(6)
    bench.engine.resume()
    bench.wait(20)
    assert bench.answers == [(1, 8.0), (0, 9.0)]


def test_a_draining_engine_finishes_what_runs_and_holds_what_is_new():
    bench = Bench()
    bench.ask(0, 30)
    bench.engine.suspend("drain")
    bench.ask(1, 10)
    bench.wait(10)
    assert bench.answers == [(0, 3.0)]
    bench.engine.resume()
    bench.wait(20)
    assert bench.answers == [(0, 3.0), (1, 11.0)]


def test_a_withdrawn_request_says_what_is_left():
    bench = Bench()
    first, second = bench.ask(0, 50), bench.ask(1, 50)
    bench.wait(4)
    bench.engine.withdraw(first)
    assert round(first.tokens, 6) == 30.0
    bench.wait(20)
    assert bench.answers == [(1, 7.0)]
    assert second.tokens == 50.0


def test_what_was_read_is_not_counted_as_generated():
    bench = Bench()
    request = bench.ask(0, 50, read=200)
    bench.wait(1)
    bench.engine.withdraw(request)
    assert request.tokens == 50.0


def test_a_held_request_can_be_withdrawn():
    bench = Bench()
    bench.engine.suspend("interrupt")
    bench.engine.withdraw(bench.ask(0, 50))
    bench.engine.resume()
    bench.wait(20)
    assert bench.answers == []


def test_new_weights_have_the_running_request_read_again():
    """10 tokens in the first second; then 100 + 10 tokens are read in 1.1 s, and 20 generated in 2 s."""
    bench = Bench()
    request = bench.ask(0, 30)
    request.context = 100
    bench.wait(1)
    bench.engine.load(1)
    bench.wait(20)
    assert bench.answers == [(0, 4.1)]
    assert request.version == 0


def test_a_held_request_runs_under_the_weights_it_finds():
    bench = Bench()
    bench.engine.suspend("interrupt")
    request = bench.ask(0, 10)
    bench.engine.load(3)
    bench.engine.resume()
    assert request.version == 3


def test_a_dead_engine_answers_nobody():
    bench = Bench()
    request = bench.ask(0, 30)
    bench.wait(1)
    bench.engine.die()
    bench.engine.resume()
    bench.wait(20)
    bench.engine.withdraw(request)
    assert bench.answers == []
    assert round(request.tokens, 6) == 20.0


def test_busy_time_counts_requests_up_to_the_capacity():
    bench = Bench(capacity=2)
    for number in range(3):
        bench.ask(number, 10)
    bench.wait(10)
    bench.engine.look()
    assert round(bench.engine.busy_s, 6) == 2 * 3.0


def test_an_engine_without_a_pace_answers_at_once():
    bench = Bench(pace=None)
    bench.ask(0, 10_000)
    bench.engine.withdraw(bench.ask(1, 10))
    bench.wait(0)
    assert bench.answers == [(0, 0.0)]


def test_it_forgets_the_prompts_it_read_first():
    engine = Bench().engine
    assert [engine.remember_prompt(group) for group in (0, 0, 1, 0)] == [False, True, False, True]
    for group in range(100, 140):
        engine.remember_prompt(group)
    assert not engine.remember_prompt(0)


def test_thousands_of_requests_keep_the_total_work():
    """Whatever the order of starts and finishes, 10 tokens/s are generated while any request runs."""
    bench = Bench()
    for number in range(2000):
        bench.wait(number * 0.5)
        bench.ask(number, 1 + number * 7 % 40)
    bench.wait(1e6)
    assert len(bench.answers) == 2000
    assert abs(bench.answers[-1][1] - sum(1 + number * 7 % 40 for number in range(2000)) / 10) < 0.5
