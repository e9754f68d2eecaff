"""Training ends early where validation has stopped getting better, and nowhere else."""

from dspark_train.controller.plateau import Plateau, PlateauRule


def rounds(*accept_lens):
    return [{"step": 10 * i, "accept_len": value} for i, value in enumerate(accept_lens)]


def first_end(plateau, lines):
    return next((line["step"] for line in lines if plateau.look(line)), None)


def test_it_ends_after_so_many_rounds_without_a_gain():
    assert first_end(Plateau(PlateauRule(2, 0.01)), rounds(1.0, 1.5, 1.505, 1.4, 2.0)) == 30


def test_a_gain_starts_the_count_again_and_small_ones_add_up():
    assert first_end(Plateau(PlateauRule(2, 0.01)), rounds(1.0, 1.006, 1.012, 1.011, 1.03)) is None


def test_the_same_round_seen_again_counts_once():
    plateau = Plateau(PlateauRule(2, 0.01))
    best, worse = rounds(1.5, 1.0)
    assert not any(plateau.look(line) for line in [best, worse, worse, worse, {}])


def test_rounds_of_an_earlier_life_count():
    lines = rounds(1.5, 1.4, 1.3)
    assert "1.500, of step 0" in Plateau(PlateauRule(2, 0.01), lines[:2]).look(lines[2])


def test_without_a_rule_it_never_ends():
    assert first_end(Plateau(PlateauRule(None, 0.01)), rounds(*[1.0] * 50)) is None
