"""Every command and every verb says what it does and shows an example."""

import argparse
import importlib
from collections.abc import Iterator

import pytest

from apportion.cli import NOUNS, Parser, main


def parsers_below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers_below(inner)


def parsers_of(noun: str) -> list[argparse.ArgumentParser]:
    parser = Parser(prog=f"apportion {noun}", description=NOUNS[noun])
    importlib.import_module(f"apportion.cli.{noun}").add_arguments(parser)
    return list(parsers_below(parser))


@pytest.mark.parametrize("noun", NOUNS)
def test_the_help_of_a_command_and_of_each_verb_shows_an_example_of_its_own(noun):
    for parser in parsers_of(noun):
        text = parser.format_help()
        verb = parser.prog.removeprefix("apportion ")
        assert "example" in text, parser.prog
        assert f"apportion {verb}" in text.split("example", 1)[1], parser.prog


@pytest.mark.parametrize("noun", NOUNS)
def test_no_line_of_help_is_wider_than_a_hundred_columns(noun):
    for parser in parsers_of(noun):
        wide = [line for line in parser.format_help().splitlines() if len(line) > 100]
        assert not wide, parser.prog


@pytest.mark.parametrize("noun", NOUNS)
def test_help_is_shown_without_a_server_and_is_no_error(noun, capsys):
    assert main([noun, "--help"]) == 0
    assert f"usage: apportion {noun}" in capsys.readouterr().out
