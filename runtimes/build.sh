#!/bin/sh
# Builds OUT/python.wasm and OUT/javascript.wasm from the files that fetch.sh left in DOWNLOADS. No network; writes only
# to OUT and $TMPDIR (about 170 MB of unpacked tools and library).
#   build.sh DOWNLOADS OUT
set -eu
here=$(cd "$(dirname "$0")" && pwd)
downloads=$(cd "$1" && pwd)
mkdir -p "$2" && out=$(cd "$2" && pwd)
export TMPDIR="${TMPDIR:-/tmp}"
tools=$(mktemp -d) && trap 'rm -rf "$tools"' EXIT
(cd "$downloads" && sha256sum --check --strict --quiet "$here/pins.sha256")

# A wheel is a zip file; no installer is needed to import from one that has been unpacked.
/usr/bin/python3 -m zipfile -e "$downloads"/componentize_py-0.25.1-*.whl "$tools/python"
cd "$here"
env -i PATH=/usr/bin:/bin TMPDIR="$TMPDIR" HOME="$tools" PYTHONPATH="$tools/python" PYTHONDONTWRITEBYTECODE=1 RUST_BACKTRACE=0 \
  /usr/bin/python3 -c 'import sys, componentize_py; sys.exit(componentize_py.script())' \
  --quiet --wit-path wit --world runtime componentize --python-path python _casemate_app --output "$out/python.wasm"

for name in componentize-qjs andreiltd-componentize-qjs-binding-linux-x64-gnu; do
  target=$(echo "$name" | sed 's|^andreiltd-|@andreiltd/|')
  mkdir -p "$tools/node_modules/$target"
  tar -xzf "$downloads/$name-0.4.5.tgz" -C "$tools/node_modules/$target" --strip-components=1
done
env -i PATH=/usr/bin:/bin TMPDIR="$TMPDIR" HOME="$tools" /usr/bin/node "$tools/node_modules/componentize-qjs/bin/componentize-qjs" \
  --wit wit --world runtime-async --js javascript/runtime.js --module-root javascript --output "$out/javascript.wasm" >/dev/null
