"""`dspark-train serve`: the vLLM command for a target and its draft, printed or run."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspark_train.errors import UsageError

if TYPE_CHECKING:
    from dspark_train.plan.serving import ServingCommand

PORT = 8000


class Format(StrEnum):
    """How the command is printed."""

    shell = "shell"
    docker = "docker"
    yaml = "yaml"


def command(
    run: Annotated[
        str | None,
        typer.Argument(help="A run that was exported, or an export's directory; the newest run if left out."),
    ] = None,
    topology: Annotated[
        Path | None, typer.Option("--topology", "-t", help="Serve with this topology's options, not the run's.")
    ] = None,
    target: Annotated[str | None, typer.Option("--target", help="Directory or id of the target, if it moved.")] = None,
    output: Annotated[Format, typer.Option("--format", help="A shell line, a docker line, or vLLM's YAML.")] = (
        Format.shell
    ),
    start: Annotated[bool, typer.Option("--run", help="Start it here, in the foreground.")] = False,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = PORT,
    num_tokens: Annotated[
        int | None, typer.Option("--num-speculative-tokens", min=1, help="Tokens drafted at a time; the draft's own.")
    ] = None,
    vllm: Annotated[
        list[str] | None, typer.Option("--vllm", help="A further option of vLLM: max_model_len=4096.")
    ] = None,
    without_draft: Annotated[bool, typer.Option("--without-draft", help="The target alone, to compare.")] = False,
    other_target: Annotated[
        bool, typer.Option("--other-target", help="Allow a target of the same shape with other weights.")
    ] = False,
    image: Annotated[str, typer.Option("--image", help="With --format docker: another image.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Print the vLLM command for the target and its draft; with --run, start it.

    Example: dspark-train serve a1 --format docker
    Example: dspark-train serve drafts/a1 --run --port 8001

    The options are those that the target was run with, without what extraction alone needs. A draft that does not
    belong to the target is refused.
    """
    from dspark_train.cli.served import find_served
    from dspark_train.plan.serving import serving_command

    served = find_served(run, topology, target, other_target=other_target)
    draft = None if without_draft else served.draft
    made = serving_command(
        served.options, draft, host=host, port=port, num_tokens=num_tokens, extra=parse_options(vllm or [])
    )
    if start:
        _become(made)
    if json:
        from json import dumps

        typer.echo(dumps(as_json(made, image)))
        return
    typer.echo(_text(made, output, image).rstrip("\n"))
    for caution in _cautions(made):
        typer.echo(f"warning: {caution}", err=True)


def parse_options(given: list[str]) -> dict[str, Any]:
    """``name=value`` as vLLM options with underscores, the value as YAML. Raises UsageError."""
    import yaml

    options = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip("-"):
            raise UsageError(f"--vllm {text}: give name=value, such as max_model_len=4096")
        try:
            options[name.strip("-").replace("-", "_")] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"--vllm {text}: the value is no YAML") from error
    return options


def as_json(made: ServingCommand, image: str = "") -> dict[str, Any]:
    """What `--json` prints. nodes: argv of each node of the engine."""
    speculative = made.options.get("speculative_config")
    return {
        "target": made.target,
        "draft": made.draft,
        "device": made.device,
        "speculative_config": speculative,
        "nodes": [list(made.argv(node)) for node in range(made.num_nodes)],
        "env": made.env,
        "secrets": list(made.secrets),
        **{output.value: _text(made, output, image) for output in Format},
        "warnings": _cautions(made),
    }


def _text(made: ServingCommand, output: Format, image: str) -> str:
    from dspark_train.plan import serving_text

    if output is Format.docker:
        return serving_text.docker(made, image)
    return serving_text.as_yaml(made) if output is Format.yaml else serving_text.shell(made)


def _cautions(made: ServingCommand) -> list[str]:
    missing = [path for path in (made.target, made.draft or "") if path.startswith("/") and not Path(path).is_dir()]
    found = [f"{path} is not on this machine: name the target's place with --target" for path in missing]
    return found + ([made.caution] if made.caution else [])


def _become(made: ServingCommand) -> None:
    """Replace this process by the server. Raises UsageError where it could not serve."""
    from dspark_train.store.child import find_program

    if made.num_nodes > 1:
        raise UsageError(
            f"--run starts one process, and the target takes {made.num_nodes} nodes: run the printed lines"
        )
    missing = [name for name in made.secrets if name not in os.environ]
    reasons = _cautions(made) + ([f"set {', '.join(missing)} in the environment"] if missing else [])
    if reasons:
        raise UsageError(f"--run: {'; '.join(reasons)}")
    program, *rest = made.argv()
    path = find_program(program)
    typer.echo(f"http://{made.options['host']}:{made.options['port']}: vLLM follows", err=True)
    os.execve(path, [path, *rest], {**os.environ, **made.env})
