#compdef hostfork
# Completion of hostfork for zsh: this as `_hostfork` in a folder of fpath, or eval "$(hostfork completion zsh)"

_hostfork() {
    local kind value text
    local -a plain shown parts after
    local paths=
    # Words as the program would get them; of the last one what stands before the cursor.
    local -a typed=("${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}")

    while IFS=$'\t' read -r kind value text; do
        case $kind in
        word) plain+=("$value") shown+=("$value${text:+  -- $text}") ;;
        part) parts+=("$value") ;;
        after) after+=("$value") ;;
        file) paths=files ;;
        dir) paths=folders ;;
        command)
            shift $value words
            ((CURRENT -= value))
            _normal
            return
            ;;
        esac
    done < <(_HOSTFORK_COMPLETE=zsh "${${(Q)words[1]}/#\~\//$HOME/}" -- "${typed[@]}" 2>/dev/null)

    # Behind `--option=` only the value is completed, behind `:` only the word.
    [[ $PREFIX == -*=* ]] && compset -P 1 '*='
    local answer=1
    (($#plain)) && compadd -l -d shown -a plain && answer=0
    (($#parts)) && compadd -S '' -a parts && answer=0
    if (($#after)); then
        compset -P '*:'
        if [[ ${after[1]} == *= ]]; then compadd -S '' -a after; else compadd -a after; fi
        answer=0
    fi
    case $paths in
    files) _files && answer=0 ;;
    folders) _files -/ && answer=0 ;;
    esac
    return answer
}

if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then
    _hostfork "$@"
else
    (($+functions[compdef])) || { autoload -Uz compinit && compinit -i -D; }
    compdef _hostfork hostfork
fi
