# Completion of hostfork for bash 4.4 or newer: eval "$(hostfork completion bash)"

_hostfork_completion() {
    local line=${COMP_LINE:0:COMP_POINT} word space i
    local -a words=()

    # Readline splits words at `=` and `:` too (COMP_WORDBREAKS); where no blank was typed, they are one.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        space=${line%%[![:space:]]*}
        line=${line#"$space"}
        # The last word ends where the cursor is.
        ((${#word} <= ${#line})) || word=$line
        line=${line#"$word"}
        if ((i > 0)) && [[ -z $space ]]; then
            words[${#words[@]} - 1]+=$word
        else
            words+=("$word")
        fi
    done

    local current=${words[${#words[@]} - 1]} typed=$2 kind value
    local -a found=()
    COMPREPLY=()
    while IFS=$'\t' read -r kind value _; do
        case $kind in
        word) found+=("$value ") ;;
        part) found+=("$value") ;;
        after)
            # Where `:` splits words, readline replaces what is behind it, else the whole word.
            [[ $COMP_WORDBREAKS == *:* ]] || value=${current%:*}:$value
            [[ $value == *= ]] || value+=" "
            found+=("$value")
            ;;
        file) compopt -o default ;;
        dir) compopt -o dirnames ;;
        command)
            _hostfork_command "$value" "$current"
            return
            ;;
        esac
    done < <(_HOSTFORK_COMPLETE=bash "${words[0]/#\~\//$HOME/}" -- "${words[@]:1}" 2>/dev/null)

    # A value behind `--option=` or `:` is offered alone, for readline replaces what follows the sign.
    if ((${#found[@]})); then
        compopt -o nospace
        if [[ $COMP_WORDBREAKS != *=* && $current == -*=* && $typed == "$current" ]]; then
            found=("${found[@]/#/"${current%%=*}="}")
        fi
        COMPREPLY=("${found[@]}")
    fi
}

# The command behind `run … --`, as if it had been typed alone.
_hostfork_command() {
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$(_hostfork_offset "$1")"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$(_hostfork_offset "$1")"
    elif ((${#words[@]} - 1 == $1)) && [[ $2 != */* ]]; then
        mapfile -t COMPREPLY < <(compgen -c -- "$2" | sort -u)
        ((${#COMPREPLY[@]})) || compopt -o default
    else
        compopt -o default
    fi
} 2>/dev/null

# The number of a word, counted as bash counts: `=` and `:` split.
_hostfork_offset() {
    local i joined=-1 line=$COMP_LINE space
    for ((i = 0; i <= COMP_CWORD; i++)); do
        space=${line%%[![:space:]]*}
        line=${line#"$space"}
        line=${line#"${COMP_WORDS[i]}"}
        if ((i == 0)) || [[ -n $space ]]; then ((joined++)); fi
        ((joined < $1)) || break
    done
    printf '%s' "$i"
}

complete -F _hostfork_completion hostfork
