"""The command line: which commands there are, and how errors become exit codes. Nothing else.

A command's module is imported only when the command is called, so that `--help` answers at once and without ray, torch
or vllm. This is the only place that turns an exception into an exit code.
"""

from __future__ import annotations

import importlib
import os
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from dspark_train import __version__
from dspark_train.cli.runs import remembered
from dspark_train.errors import DSparkError

NAME = "dspark-train"
EXIT_USAGE = 2
EXIT_BUG = 3
EXIT_INTERRUPTED = 130

COMMANDS = {
    "launch": "Plan and start a run, and follow it.",
    "plan": "Show everything that launch would start; start nothing.",
    "status": "Show a run now, also when all of it is dead.",
    "page": "Print the link to a run's page.",
    "report": "Write the story of a run as one HTML file.",
    "scale": "Start or stop engines and ranks while a run goes on.",
    "rebalance": "Let the balance act, advise, or rest.",
    "stop": "Write a checkpoint and end a run.",
    "events": "Show what happened in a run.",
    "logs": "Show the logs of a run's components.",
    "doctor": "Check whether this machine is fit to run.",
    "prepare": "Make the training set from conversations.",
    "eval": "Measure what the target accepts of a draft.",
    "extract": "Extract hidden states once, for runs without engines.",
    "export": "Write the draft as a Hugging Face directory.",
    "serve": "Print or start the vLLM command for the target and its draft.",
    "simulate": "Play the balance on a virtual clock, beside other laws.",
    "bench": "Measure transfer, ledger, pipeline and start-up.",
    "schema": "Print the JSON schema of the topology file.",
}
"""Every command and its line in `--help`. Command NAME is the function ``command`` of dspark_train/cli/NAME.py."""


class LazyGroup(TyperGroup):
    """The group of all commands; imports one's module when it is called or asked for its own help."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            close = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
            ctx.fail(f"no such command: {args[0]}: {hint}")
        return super().resolve_command(ctx, args)


def load_command(name: str) -> Any:
    """The command of that name, its module imported now."""
    module = importlib.import_module(f"dspark_train.cli.{name}")
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name=name, short_help=COMMANDS[name])(module.command)
    return get_command(single)


app = typer.Typer(
    cls=LazyGroup,
    name=NAME,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog=f"Example: {NAME} launch --topology topologies/quickstart.yaml",
)


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Elastic training of speculative-decoding drafts: inference and training as two pools that scale apart."""
    if version:
        typer.echo(f"{NAME} {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def main() -> None:
    """Entry point of the `dspark-train` script. Ends the process with the exit code of cli.md's table."""
    # pydantic would read the metadata of every installed package at each start, looking for plugins of its own.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """Run one command line and return its exit code; messages go to standard error."""
    try:
        code = get_command(app).main(args, prog_name=NAME, standalone_mode=False)
    except typer.TyperException as error:
        _say(_usage_text(error))
        return EXIT_USAGE
    except DSparkError as error:
        _say(str(error))
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the one boundary: what gets here is a bug of ours
        _say(_bug_text(error))
        return EXIT_BUG
    return code if isinstance(code, int) else 0


def _say(text: str) -> None:
    for line in text.splitlines():
        indented = line.startswith(" ")
        typer.echo(line if indented else f"error: {line}", err=True)


def _usage_text(error: typer.TyperException) -> str:
    text = error.format_message().rstrip(".")
    close = getattr(error, "possibilities", None)
    if close:
        text = f"{error.message.rstrip('.')}: did you mean {' or '.join(sorted(close))}?"
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else NAME
    return f"{text[:1].lower()}{text[1:]}\n  see `{command} --help`"


def _bug_text(error: Exception) -> str:
    """Write the traceback where it is found again. Returns the message that names the file."""
    import traceback

    text = "".join(traceback.format_exception(error))
    where = _write_traceback(text)
    return (
        f"{type(error).__name__}: {str(error) or 'no message'}: this is a bug of {NAME}; the traceback is in {where}: "
        "please report it with that file"
    )


def _write_traceback(text: str) -> Path:
    import tempfile

    layout = remembered()
    if layout is not None:
        try:
            layout.traceback.write_text(text, encoding="utf-8")
        except OSError:
            layout = None  # the run's directory is gone or full: the temporary one is tried instead
        else:
            return layout.traceback
    with tempfile.NamedTemporaryFile("w", prefix=f"{NAME}-traceback-", suffix=".txt", delete=False) as file:
        file.write(text)
    return Path(file.name)


if __name__ == "__main__":
    main()
