#!/bin/sh
# What a developer or an agent does in the project: build, test, run, edit. It knows nothing of hostfork.
set -eu
echo "working in $(pwd)"
./build.sh
PYTHONPATH=src python3 -m unittest discover -s tests -q
python3 dist/wordcount.pyz words.txt

printf '\n\ndef total(text):\n    """How many words a text has."""\n    return len(text.split())\n' >>src/wordcount/__init__.py
printf '# wordcount\n\nCounts words.\n' >README.md
rm notes/old.txt
chmod 600 words.txt
PYTHONPATH=src python3 -c 'import wordcount; print(wordcount.total("one two three"), "words in all")'
if command -v git >/dev/null 2>&1; then
    git status --short
fi
