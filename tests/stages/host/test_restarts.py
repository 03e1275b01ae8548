"""The restart policy: pure, on numbers."""

from stages.host.restarts import RestartPolicy


def test_the_back_off_doubles_to_its_bound() -> None:
    policy = RestartPolicy(limit=8, first_s=0.2, most_s=10.0)
    delays = [policy.decide([100.0] * restarts, 101.0) for restarts in range(8)]
    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_a_process_is_not_restarted_more_often_than_the_limit_within_the_window() -> None:
    policy = RestartPolicy(limit=2, window_s=600.0)
    assert policy.decide([0.0, 10.0], 20.0) is None


def test_restarts_before_the_window_are_forgotten() -> None:
    policy = RestartPolicy(limit=2, window_s=600.0, first_s=0.2)
    assert policy.decide([0.0, 10.0], 1000.0) == 0.2


def test_a_limit_of_zero_makes_every_death_final() -> None:
    assert RestartPolicy(limit=0).decide([], 5.0) is None
