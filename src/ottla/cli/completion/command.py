"""`ottla completion`: the script with which a shell completes command lines."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, /, *, shell: str) -> None:
    """Print the script that completes command lines of ottla, with names of topics and groups.

    Names are asked of the cluster that the command line means so far. It has a second for the answer.

    \b
    Examples:
      echo 'eval "$(ottla completion bash)"' >> ~/.bashrc
      echo 'eval "$(ottla completion zsh)"' >> ~/.zshrc
      ottla completion fish > ~/.config/fish/completions/ottla.fish
    """
    from ottla.cli.completion.shells import script

    click.echo(script(shell, context.find_root().command), nl=False)
