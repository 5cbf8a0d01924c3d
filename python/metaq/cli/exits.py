"""How a command ends. An expected error is one line on standard error, or one JSON object with `-o json`.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | it failed, or was answered no |
| 2 | a flag, an argument or a setting is wrong |
| 3 | the topic, group, message or cluster does not exist, or a search found nothing |
| 10 | the cluster is not healthy (`metaq cluster status`, `metaq doctor`) |
| 130 | Ctrl-C |
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from metaq.cli.invocation import Format, current
from metaq.errors import ConfigError, MetaqError, NoRoute, NoSuchGroup, NoSuchMessage

if TYPE_CHECKING:
    import typer

COMPLETING: Final = "_METAQ_COMPLETE"
"""Shells set this variable when they ask for words; `metaq completion` makes them do so."""
FAILED: Final = 1
WRONG_USE: Final = 2
NOT_FOUND: Final = 3
UNHEALTHY: Final = 10
INTERRUPTED: Final = 130


def run_to_exit(app: typer.Typer) -> NoReturn:
    """Runs the command of this process and exits."""
    from typer import Abort
    from typer._click.exceptions import ClickException, NoArgsIsHelpError, UsageError

    if COMPLETING in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    try:
        code = app(prog_name="metaq", complete_var=COMPLETING, standalone_mode=False)
    except MetaqError as error:
        # The text of some errors ends with their hint.
        text = error.args[0] if error.args else str(error)
        fail(text, error.hint, code_of(error), type(error).__name__)
    except PermissionError as error:
        from metaq.private_files import whose

        hint = whose(error.filename, error) if error.filename else ""
        fail(hint or str(error), "", FAILED, "PermissionError")
    except BrokenPipeError:
        # The reader of the pipe has seen enough. Buffered output must not fail again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except NoArgsIsHelpError as error:
        error.show()
        sys.exit(WRONG_USE)
    except UsageError as error:
        text = error.format_message()
        hint = f"`{error.ctx.command_path} --help` shows how" if error.ctx and "`" not in text else ""
        fail(text, hint, WRONG_USE, "UsageError")
    except ClickException as error:
        fail(error.format_message(), "", FAILED, "CommandError")
    except Abort:
        print("Aborted.", file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def code_of(error: MetaqError) -> int:
    """Returns the exit code for an error."""
    if isinstance(error, ConfigError):
        return WRONG_USE
    # A topic may have no route for a moment; that can be tried again.
    is_missing = isinstance(error, NoSuchGroup | NoSuchMessage | NoRoute) and not error.retriable
    return NOT_FOUND if is_missing else FAILED


def fail(text: str, hint: str, code: int, kind: str) -> NoReturn:
    """Prints an error and exits."""
    if current().output is Format.json:
        import msgspec

        error = {"type": kind, "message": text, "hint": hint or None, "exit_code": code}
        print(msgspec.json.encode({"error": error}).decode(), file=sys.stderr)
    else:
        from metaq.cli.printing.formats import safe_lines

        advice = f"; {hint}" if hint and hint not in text else ""
        print(safe_lines(f"metaq: {text}{advice}"), file=sys.stderr)
    sys.exit(code)
