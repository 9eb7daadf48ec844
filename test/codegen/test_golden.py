"""Plans and loops of kernels on targets are those kept in test/golden; golden_plans.py describes and makes them."""
from dataclasses import replace

import pytest
from support.golden_plans import FOLDER, TARGETS, blocks, difference, families, pairs, write

from minigrad.codegen.kernel.text import parse_kernel
from minigrad.codegen.lowering.arguments import from_first
from minigrad.codegen.passes import flat_form, parts_of, stages_of, units_of
from minigrad.codegen.plan.given import names
from minigrad.codegen.plan.several import parse_plan


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


@pytest.mark.parametrize("family", families())
def test_plans_given_back_are_taken(family: str) -> None:
    """Each text is that of a plan, and the loops that it makes are checked; they are the same where no length becomes
    an argument."""
    for pair in pairs(family)[::4]:
        kernel, target = parse_kernel(pair.kernel), TARGETS[pair.target]
        staged = stages_of(kernel, target)
        parts = [kernel]
        if kernel.block is None:
            flat = from_first(flat_form(kernel))[0]
            parts = parts_of(flat, *units_of(flat, target))
        texts = [str(s.plan) for s in staged.stages]
        assert [str(parse_plan(text)) for text in texts] == texts
        given = tuple([(own, text) for (_, own), text in zip(names(parts), texts, strict=True)])
        again = stages_of(kernel, replace(target, plans=given))
        for own, mine in zip(staged.stages, again.stages, strict=True):
            assert str(mine.plan).split("\n")[0] in ("plan given", "plan block", "plan joined"), str(pair)
            assert mine.function == own.function or len(own.dims) > len(mine.dims), str(pair)


def test_every_target_has_pairs() -> None:
    assert {pair.target for family in families() for pair in pairs(family)} == set(TARGETS)
