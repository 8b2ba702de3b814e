"""`splatstudio completion`: a script with which a shell completes commands, options, choices and paths.

It is written from the declarations of the options, so that nothing has to be asked while somebody types:
Python alone takes as long to start as a completion may take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote
from typing import Literal

from splatstudio.cli.command_options import CommandOption, Commands, arms, options_of, positionals_of
from splatstudio.cli.overview import SUMMARIES
from splatstudio.cli.short_help import choices_of, first_sentence

ShellName = Literal["bash", "zsh", "fish"]
TEXTS_OF_PATHS = ("images", "init")  # settings that are kept as texts

# `values` are the choices of the option before, "-" where nobody can guess its value; `alone` those of what
# stands without an option.
_BASH = """\
_splatstudio() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
    local options= values= alone= paths=yes
    COMPREPLY=()
    # Bash makes three words of --preset=fast.
    if [[ $word == = ]]; then word=; elif [[ $before == = ]]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi
    if (( COMP_CWORD == 1 )); then
        COMPREPLY=( $(compgen -W "COMMANDS" -- "$word") )
        return
    fi
    case ${COMP_WORDS[1]} in
CASES
    esac
    if [[ $values == - ]]; then
        return
    elif [[ -n $values ]]; then
        COMPREPLY=( $(compgen -W "$values" -- "$word") )
    elif [[ $word == -* && $paths != value ]]; then
        COMPREPLY=( $(compgen -W "$options" -- "$word") )
    elif [[ -n $alone ]]; then
        COMPREPLY=( $(compgen -W "$alone" -- "$word") )
    elif [[ $paths != no ]]; then
        local file
        while IFS= read -r file; do COMPREPLY+=("$file"); done < <(compgen -f -- "$word")
        compopt -o filenames 2>/dev/null
    fi
}
complete -F _splatstudio splatstudio
"""
# zsh reads completions of bash, once it was told to.
_ZSH = """\
(( $+functions[compdef] )) || { autoload -U compinit && compinit }
autoload -U bashcompinit && bashcompinit
"""


def completion_script(shell: ShellName, commands: Commands) -> str:
    """Return a script that completes all commands, to be read by that shell when it starts."""
    if shell == "fish":
        return "\n".join(_fish_lines(commands))
    cases = "\n".join(_bash_case(name, command) for name, command in commands.items())
    script = _BASH.replace("COMMANDS", " ".join(commands)).replace("CASES", cases)
    return script if shell == "bash" else _ZSH + script


def _bash_case(name: str, command: Callable[..., object]) -> str:
    options = {_spelled(option): declared for option, declared in options_of(command).items()}
    lines = [f"    {name})", f"        options={quote(' '.join(['--help-all', *options]))}"]
    positionals = positionals_of(command)
    choices = [choice for each in positionals.values() for choice in choices_of(each.kind)]
    if not any(_is_path(part, each) for part, each in positionals.items()):
        lines.append(f"        paths=no alone={quote(' '.join(choices))}")
    lines.append("        case $before in")
    for values, group in _by_values(options).items():
        lines.append(f"        {'|'.join(group)}) {values} ;;")
    return "\n".join([*lines, "        esac ;;"])


def _by_values(options: dict[str, CommandOption]) -> dict[str, list[str]]:
    """Return the options that have a value by what is said to bash of it."""
    groups: dict[str, list[str]] = {}
    for spelled, option in options.items():
        if option.kind is bool:
            continue
        choices = choices_of(option.kind)
        if choices:
            values = f"values={quote(' '.join(choices))}"
        else:
            values = "values= paths=value" if _is_path(spelled.lstrip("-"), option) else "values=-"
        groups.setdefault(values, []).append(spelled)
    return groups


def _fish_lines(commands: Commands) -> Iterator[str]:
    begin = "complete -c splatstudio"
    for name, command in commands.items():
        yield f"{begin} -n __fish_use_subcommand -f -a {name} -d {_fish_text(SUMMARIES[name])}"
        here = f"{begin} -n '__fish_seen_subcommand_from {name}'"
        positionals = positionals_of(command)
        if not any(_is_path(part, each) for part, each in positionals.items()):
            yield f"{here} -f"
        for each in positionals.values():
            if choices := choices_of(each.kind):
                yield f"{here} -a {_fish_text(' '.join(choices))}"
        yield f"{here} -l help-all -d 'Show all options.'"
        for option, declared in options_of(command).items():
            letters = f"-s {option}" if len(option) == 1 else f"-l {option}"
            said = _fish_text(first_sentence(declared.help))
            yield f"{here} {letters}{_fish_value(option, declared)} -d {said}"


def _fish_value(name: str, option: CommandOption) -> str:
    if option.kind is bool:
        return ""
    if choices := choices_of(option.kind):
        return f" -x -a {_fish_text(' '.join(choices))}"
    return " -rF" if _is_path(name, option) else " -x"


def _fish_text(text: str) -> str:
    """Return a text in fish's single quotes, in which a backslash and a quote are escaped."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _is_path(name: str, option: CommandOption) -> bool:
    return Path in arms(option.kind) or name in (*TEXTS_OF_PATHS, "paths")


def _spelled(name: str) -> str:
    return f"--{name}" if len(name) > 1 else f"-{name}"
