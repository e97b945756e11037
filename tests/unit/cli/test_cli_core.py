"""The command line as a whole: its table of commands, exit codes, errors, and what it loads."""

import argparse
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest

from apportion import cli
from apportion.cli import main
from apportion.cli.arguments import whole_number
from apportion.cli.output import plain, table, wants_colour
from apportion.errors import ConflictError, InvalidInputError
from apportion.planning import Mechanism


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """Put a command of the test's own in place of `plan`."""

    class Noun:
        error: BaseException | None = None

        @staticmethod
        def add_arguments(parser: argparse.ArgumentParser) -> None:
            verbs = parser.add_subparsers(required=True)
            verbs.add_parser("go").add_argument("--gpu-model")

        @classmethod
        def run(cls, _args: argparse.Namespace) -> int:
            if cls.error is not None:
                raise cls.error
            return 0

    monkeypatch.setitem(sys.modules, "apportion.cli.plan", Noun)  # pyright: ignore[reportArgumentType]
    monkeypatch.delenv("APPORTION_DEBUG", raising=False)
    return Noun


def test_the_overview_names_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in cli.NOUNS)
    assert "apportion plan JPCP" in out


def test_no_command_at_all_shows_the_overview_and_fails(capsys):
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


def test_the_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("apportion 0.")


def test_an_unknown_command_is_bad_input_with_the_nearest_one(capsys):
    assert main(["plann"]) == 2
    err = capsys.readouterr().err
    assert "'plann'" in err
    assert "Did you mean plan?" in err
    assert main(["xyzzy"]) == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInputError("is odd", field="count", given=3, allowed="even numbers"), 2),
        (ConflictError("somebody was first"), 1),
        (KeyboardInterrupt(), 130),
        (RuntimeError("a bug"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code_and_no_traceback(command, capsys, error, code):
    command.error = error
    assert main(["plan", "go"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_an_error_names_field_given_and_allowed(command, capsys):
    command.error = InvalidInputError("is odd", field="count", given=3, allowed="even numbers")
    main(["plan", "go"])
    assert capsys.readouterr().err == "error: count: is odd (given: 3); allowed: even numbers\n"


def test_the_debug_variable_lets_errors_through(command, monkeypatch):
    monkeypatch.setenv("APPORTION_DEBUG", "1")
    command.error = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        main(["plan", "go"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["go", "--gpu", "x"], "--gpu"),  # no abbreviation of --gpu-model
        (["go", "--nonsense"], "--nonsense"),
        (["stop"], "stop"),
        ([], "required"),
    ],
)
def test_a_bad_flag_is_bad_input_and_named(command, capsys, arguments, words):
    assert main(["plan", *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "--help" in err


def test_help_of_a_command_is_not_an_error(capsys):
    for name in ("plan", "pack", "accounting"):
        assert main([name, "--help"]) == 0
        assert f"apportion {name} " in capsys.readouterr().out


def run(*arguments: str, **options):
    command = [sys.executable, "-m", "apportion", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_a_plan_loads_no_database_web_or_solver_module():
    web = ["fastapi", "httpx2", "pydantic", "starlette", "structlog", "uvicorn"]
    heavy = [*web, "ortools", "psycopg", "rich", "yaml"]
    program = (
        "import sys; from apportion.cli import main\n"
        "main(['plan', 'a', '--fraction', '0.25', '--mig-capable', '-o', 'json'])\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stderr == "[]\n"


def test_a_plan_of_a_plain_fraction_loads_no_geometry():
    program = (
        "import sys; from apportion.cli import main\n"
        "main(['plan', 'a', '--fraction', '0.25'])\n"
        "print('apportion.geometry' in sys.modules, file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stderr == "False\n"


def test_a_terminal_without_unicode_gets_ascii():
    result = run("plan", "é", "--fraction", "0.25", env={"PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0
    assert result.stdout == (
        "?: whole (isolation: exclusive) - 1.00 GPU\n"
        "  no fractional support - rounded 0.25 up to a whole GPU (75% wasted)\n"
        "  ! 75% GPU capacity wasted by this fallback.\n"
    )


def test_a_reader_that_leaves_early_is_no_error():
    asks = [word for number in range(2000) for word in ("--ask", f"a{number}:0.001")]
    # More than a pipe holds; without its buffer Python does not notice a reader that left midway.
    arguments = ["pack", *asks, "--gpus", "60", "--timeslice", "-o", "json"]
    with subprocess.Popen(
        [sys.executable, "-m", "apportion", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_columns_of_numbers_stand_to_the_right():
    assert table(("name", "count"), [("a", 5), ("long", 50)]) == (
        "NAME  COUNT\na         5\nlong     50"
    )
    assert table(("name", "count"), [("a", None)]) == "NAME  COUNT\na     -"
    assert table(("name",), []) == "NAME"


def test_programs_get_exact_strings():
    moment = datetime(2026, 12, 1, tzinfo=UTC)
    assert plain({"share": Fraction(3, 7), "kinds": (Mechanism.MIG,), "at": moment}) == {
        "share": "3/7",
        "kinds": ["mig"],
        "at": "2026-12-01T00:00:00Z",
    }
    assert plain([timedelta(hours=1), Decimal("0.10"), None, True, 5]) == [
        *("1h", "0.10", None, True, 5)
    ]
    for bad in (0.5, object()):
        with pytest.raises(TypeError, match="must not print"):
            plain(bad)


def test_colour_is_for_terminals_without_no_color(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_colour(Terminal())
    assert not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())


@pytest.mark.parametrize("text", ["", "-1", "1_0", "1.0", " 1", "\u0661", "²", "x"])
def test_a_whole_number_is_ascii_digits(text):
    with pytest.raises(argparse.ArgumentTypeError, match="whole number"):
        whole_number(text)
    assert whole_number("042") == 42


def test_a_whole_number_that_nothing_could_count_is_too_large_and_not_called_none():
    assert whole_number("9" * 18) == 10**18 - 1
    with pytest.raises(argparse.ArgumentTypeError, match="is too large"):
        whole_number("9" * 19)
