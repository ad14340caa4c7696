#!/bin/sh
# Make a small real project in a new folder: sources, a build, tests, and where git is there, a history.
# usage: project.sh FOLDER
set -eu
mkdir -p "$1/src/wordcount" "$1/tests" "$1/notes"
cd "$1"

cat >src/wordcount/__init__.py <<'END'
"""Count words."""


def count(text):
    """How often each word is in a text."""
    words = {}
    for word in text.lower().split():
        words[word] = words.get(word, 0) + 1
    return words
END
cat >src/wordcount/command.py <<'END'
import sys

from wordcount import count


def main():
    with open(sys.argv[1]) as file:
        for word, times in sorted(count(file.read()).items()):
            print(times, word)
END
cat >tests/test_wordcount.py <<'END'
import unittest

from wordcount import count


class CountTest(unittest.TestCase):
    def test_counts(self):
        self.assertEqual(count("a b a"), {"a": 2, "b": 1})

    def test_empty(self):
        self.assertEqual(count(""), {})
END
cat >build.sh <<'END'
#!/bin/sh
# Build dist/wordcount.pyz, one file that can be run.
set -eu
mkdir -p dist
python3 -m zipapp src -m wordcount.command:main -o dist/wordcount.pyz
echo "built dist/wordcount.pyz"
END
chmod 755 build.sh
printf 'one two two three three three\n' >words.txt
printf 'An idea that did not work out.\n' >notes/old.txt
printf 'dist/\n__pycache__/\n' >.gitignore

if command -v git >/dev/null 2>&1; then
    git init -q -b main .
    git add .
    git -c user.name='A Developer' -c user.email=developer@example.org commit -q -m 'Count words'
fi
