"""What was given: options from a call or a command line, and from the scenario file that it names."""

from __future__ import annotations

from collections.abc import Mapping

from dscalc.errors import InputError
from dscalc.specs.option_table import OPTIONS, Option
from dscalc.specs.options import read_word


def gather(options: Mapping[str, object], table: Mapping[str, Option] = OPTIONS) -> dict[str, object]:
    """Read a mapping of options in any spelling into canonical names and parsed values; ``None`` means not given.

    Args:
        options: option words to values; ``scenario`` names a TOML file whose words count where the mapping is silent.
        table: the options there are, by canonical name.

    Returns:
        Canonical names to parsed values, in the order of the table.

    Raises:
        InputError: an unknown word, a bad value, or two spellings of one option that disagree.
    """
    given: dict[str, object] = {}
    scenario: object = None
    for word, value in options.items():
        if value is None:
            continue
        if word == "scenario":
            scenario = value
            continue
        name, parsed = read_word(word, value, table)
        if name in given and given[name] != parsed:
            raise InputError(
                f"is given twice, as {given[name]} and as {parsed} (--{word.replace('_', '-')})",
                where=table[name].flag,
            )
        given[name] = parsed
    if scenario is not None:
        from dscalc.specs.scenario import load_scenario  # reads TOML

        given = {**load_scenario(str(scenario), table), **given}
    return {name: given[name] for name in table if name in given}
