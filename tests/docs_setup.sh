#!/bin/sh
# What the commands in the documents find: `~/proj`, a small project in git, with the script that is run in it.
# usage: docs_setup.sh PROJECT.SH      in the home folder
set -eu
sh "$1" "$HOME/proj"
cd "$HOME/proj"
cat >work.sh <<'END'
#!/bin/sh
# Build, test, edit: what a developer or an agent does.
set -eu
./build.sh
PYTHONPATH=src python3 -m unittest discover -s tests
sed -i 's/"""Count words."""/"""Count words, case ignored."""/' src/wordcount/__init__.py
printf '# wordcount\n\nCounts words.\n' >README.md
rm notes/old.txt
END
chmod 755 work.sh
git add .
git commit -q -m 'The work'
mkdir "$HOME/notes"
echo read >"$HOME/notes/list"
cat >"$HOME/server.py" <<'END'
"""Serve one sentence on a Unix socket."""
import http.server, os, socketserver, sys


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello from the host\n")

    def log_message(self, *words):
        pass

    def address_string(self):
        return ""


os.makedirs(os.path.dirname(sys.argv[1]))
socketserver.UnixStreamServer(sys.argv[1], Handler).serve_forever()
END
mkdir "$HOME/.ssh"
echo secret >"$HOME/.ssh/id"
