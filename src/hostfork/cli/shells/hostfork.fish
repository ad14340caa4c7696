# Completion of hostfork for fish 3 or newer: this as ~/.config/fish/completions/hostfork.fish

function __hostfork_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    # The words before the cursor are without quotes; the last one is as it stands.
    set -l plain (string unescape -- $current 2>/dev/null; or string join '' -- $current)
    set -l before ''
    if string match -qr '^-[^=]*=' -- $current
        set before (string replace -r '=.*$' '=' -- $current)
    end
    set -l path (string sub -s (math (string length -- "$before") + 1) -- $current)
    set -l behind (string replace -r '[^:]*$' '' -- $current)

    env _HOSTFORK_COMPLETE=fish (string replace -r '^~/' "$HOME/" -- $words[1]) -- $words[2..-1] $plain 2>/dev/null | while read -d \t kind value text
        switch $kind
            case word part
                printf '%s\t%s\n' $before$value $text
            case after
                printf '%s\n' $behind$value
            case file
                printf '%s\n' $before(__fish_complete_path $path)
            case dir
                printf '%s\n' $before(__fish_complete_directories $path '')
            case command
                complete -C (string join -- ' ' (string escape -- $words[(math $value + 1)..-1]) $current)
        end
    end
end

complete -c hostfork -f -a '(__hostfork_complete)'
