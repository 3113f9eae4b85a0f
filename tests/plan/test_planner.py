"""Which layout is chosen, and what is said about the others."""

import pytest
from tests.plan.given import question

from windrow.cluster.mapping import Layout
from windrow.errors import ConfigError
from windrow.plan.planner import Plan, lack_of_memory, make_plan
from windrow.plan.question import Memory
from windrow.plan.trial import learn_s, simulation
from windrow.types import but


@pytest.fixture(scope="module")
def usual() -> Plan:
    return make_plan(question())


def step_s(plan: Plan, kind: str, train: int) -> float:
    (found,) = [each.trial for each in plan.candidates if (each.layout.kind, len(each.layout.train)) == (kind, train)]
    assert found is not None
    return found.step_s


def test_without_a_bound_everybody_takes_turns_on_everything(usual: Plan):
    plan = usual
    assert plan.layout.kind == "colocated"
    assert [each.verdict for each in plan.candidates].count("chosen") == 1
    assert plan.chosen.why == "the fastest"
    assert plan.reasons[0].startswith("colocated: generation on 0-3, training on 0-3; of 7 layouts that work")


def test_with_a_bound_and_dear_hand_overs_each_has_its_own():
    asked = question(staleness=1.0)
    plan = make_plan(but(asked, costs=but(asked.costs, hand_over_s=30.0)))
    assert plan.layout.kind == "disjoint"


def test_of_equally_fast_layouts_the_simplest_is_taken():
    """Training hardly counts, so all that keep every engine are alike, and borrowing is not free."""
    plan = make_plan(question(2, learn_s=0.001, train=(), infer=None))
    assert (plan.layout.kind, plan.layout.infer, plan.layout.train) == ("disjoint", (0, 1), ())


def test_more_trainers_train_faster_but_not_quite_as_many_times():
    asked = question()
    one, four = (learn_s(asked, Layout(infer=(0, 1, 2, 3), train=tuple(range(k)))) for k in (1, 4))
    assert 2.0 < one / four < 4.0
    assert learn_s(but(asked, splits=False), Layout(infer=(0, 1), train=(0,))) == 60.0
    assert learn_s(but(asked, trainers=4), Layout(infer=(0, 1), train=())) == four


def test_candidates_come_in_order_of_their_speed_and_the_same_question_has_the_same_answer(usual: Plan):
    plan = usual
    times = [each.trial.step_s for each in plan.candidates if each.trial is not None]
    assert times == sorted(times)
    assert all(0.0 < each.trial.utilisation <= 1.0 for each in plan.candidates if each.trial is not None)
    assert make_plan(question()) == plan


def test_an_engine_more_makes_generation_faster():
    plan = make_plan(question(learn_s=1.0))
    assert step_s(plan, "disjoint", 1) < step_s(plan, "disjoint", 2) < step_s(plan, "disjoint", 3)


def test_a_layout_that_the_file_says_is_kept_and_the_faster_one_named():
    said = Layout(infer=(1, 2, 3), train=(0,))
    plan = make_plan(question(given=said))
    assert plan.layout == said
    assert plan.chosen.why == "as the file says"
    assert any(reason.startswith("faster would be colocated") for reason in plan.reasons)
    assert any(each.why.endswith("less time per step") for each in plan.candidates)


def test_what_does_not_fit_is_refused_without_a_trial():
    memory = Memory(device=5e9, engine=1e9, trainer=8e9)
    plan = make_plan(question(memory=memory))
    refused = {(each.layout.kind, len(each.layout.train)) for each in plan.candidates if each.verdict == "refused"}
    assert refused == {("disjoint", 1), ("overlapping", 1)}
    assert "training needs 8 GB on a device that has 5 GB" in plan.candidates[-1].why
    assert plan.candidates[-1].trial is None


def test_where_all_take_turns_both_must_fit_because_nobody_leaves():
    memory = Memory(device=5e9, engine=4e9, trainer=8e9)
    everything = Layout(infer=(0, 1, 2, 3), train=(0, 1, 2, 3))
    assert "both stay there" in lack_of_memory(memory, everything)
    assert lack_of_memory(memory, Layout(infer=(0, 1, 2, 3), train=(0, 1))) == ""
    assert lack_of_memory(but(memory, device=None), everything) == ""


@pytest.mark.parametrize(
    ("reference", "critic", "seconds"),
    [
        ((), (), 60.0),  # all three in turn
        ((), (3,), 40.0),  # the critic beside the others
        ((2,), (3,), 30.0),  # everybody beside everybody
        ((3,), (3,), 30.0),  # two in turn, beside the actor
        ((0,), (3,), 40.0),  # the reference takes turns with the actor
    ],
)
def test_those_on_devices_of_their_own_train_beside_the_others(
    reference: tuple[int, ...], critic: tuple[int, ...], seconds: float
):
    costs = but(question().costs, reference_share=1 / 6, critic_share=1 / 3)
    layout = Layout(infer=(1, 2), train=(0,), reference=reference, critic=critic)
    assert learn_s(but(question(), costs=costs), layout) == pytest.approx(seconds)


def test_those_on_devices_of_their_own_need_no_memory_elsewhere():
    memory = Memory(device=9e9, engine=1e9, trainer=8e9, reference=2e9, critic=8e9)
    assert "training needs 18 GB" in lack_of_memory(memory, Layout(infer=(1,), train=(0,)))
    assert "training needs 10 GB" in lack_of_memory(memory, Layout(infer=(1,), train=(0,), critic=(2,)))
    assert lack_of_memory(memory, Layout(infer=(1,), train=(0,), critic=(2,), reference=(3,))) == ""
    assert "training needs 10 GB" in lack_of_memory(memory, Layout(infer=(1,), train=(0,), critic=(2,), reference=(0,)))
    assert "training needs 10 GB" in lack_of_memory(memory, Layout(infer=(1,), train=(), critic=(2,), reference=(2,)))


def test_what_is_left_to_a_plan_beside_generation_and_training_is_said():
    reasons = make_plan(question(2, left=("critic", "reward"))).reasons
    assert any(each.startswith("the critic sits with training") for each in reasons)
    assert "reward models sit where reward_args.model.device says" in reasons


def test_nothing_that_fits_is_an_error_with_a_way_out():
    with pytest.raises(ConfigError, match=r"cannot work: an engine needs 1 GB .* use more devices or a smaller model"):
        make_plan(question(memory=Memory(device=0.5e9, engine=1e9, trainer=1e9)))
    with pytest.raises(ConfigError, match="no layout fits on 1 devices with 2 for an engine"):
        make_plan(question(1, infer_each=2))


def test_a_simulation_borrows_the_devices_that_are_shared():
    config = simulation(question(), Layout(infer=(2, 3, 0, 1), train=(0, 1)))
    assert config.trainer.borrows == (2, 3)
    assert (config.engines.count, config.engines.devices) == (4, 1)
