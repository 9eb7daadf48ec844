"""Plans and loops of kernels on targets are those kept in test/golden; golden_plans.py describes and makes them."""
import pytest
from support.golden_plans import FOLDER, TARGETS, blocks, difference, families, pairs, write


@pytest.mark.parametrize("family", families())
def test_plans_and_loops_stay(family: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    """`--update-golden` keeps what there is now, and says what changed."""
    kept, full = (dict(blocks(FOLDER / kind / f"{family}.txt")) for kind in ("plans", "loops"))
    plans: dict[str, str] = {}
    loops: dict[str, str] = {}
    changes = []
    for pair in pairs(family):
        name = str(pair)
        plans[name], text = pair.made()
        if pair.full:
            loops[name] = text
        if plans[name] != kept.get(name) or loops.get(name) != full.get(name):
            changes.append(f"\n{name}\n{difference(kept.get(name, ''), plans[name])}")
            show = f"    loops: python test/support/golden_plans.py \"{pair.name}\" {pair.target} --against HEAD\n"
            changes[-1] += difference(full.get(name, ""), text, 6) if pair.full else show
    changes += [f"\n{name}\n    is no pair any more\n" for name in kept if name not in plans]
    changes.append(f"\n{family}: {len(changes)} of {len(plans)} pairs changed\n")
    if request.config.getoption("--update-golden"):
        write(FOLDER / "plans" / f"{family}.txt", plans)
        write(FOLDER / "loops" / f"{family}.txt", loops)
        with capsys.disabled():
            print(*changes, sep="")
    elif len(changes) > 1:
        pytest.fail("".join(changes) + "--update-golden keeps them", pytrace=False)


def test_every_target_has_pairs() -> None:
    assert {pair.target for family in families() for pair in pairs(family)} == set(TARGETS)
