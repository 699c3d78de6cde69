"""`headrace completion`: the scripts are click's; names of topics, groups and views come from `options.complete_*`."""

from __future__ import annotations

import click

from headrace.cli.options import home_option


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@home_option
def completion(shell: str) -> None:
    """Print the completion script of a shell: commands, options, and the names of what there is.

    Names are those of topics, groups, queues, views, captures and their tables, indexes and sinks.

    \b
    Example:
      eval "$(headrace completion bash)"                                    # this shell; for all: in ~/.bashrc
      eval "$(headrace completion zsh)"                                     # in ~/.zshrc
      headrace completion fish > ~/.config/fish/completions/headrace.fish
    """
    from click.shell_completion import ShellComplete, get_completion_class

    from headrace.cli.root import cli

    found = get_completion_class(shell)
    assert found is not None
    # ShellComplete's own source(): bash's asks the bash of this machine for its version, which may not be the user's.
    click.echo(ShellComplete.source(found(cli, {}, "headrace", "_HEADRACE_COMPLETE")))
