#!/bin/sh
# Prunes a tree, compiles its Python files, and makes it the same whoever builds it and when.
#
#     finish.sh FOLDER PART [LIST ...]
#
# The patterns of each LIST are below FOLDER/PART.
set -eu
folder=$1
part=$2
shift 2
if [ $# -gt 0 ]; then
    python3 /build/prune.py "$folder/$part" "$@"
fi
# `unchecked-hash` keeps byte code valid whatever the file times are. It does not depend on the
# processor, but on Python's minor version.
python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -s "$folder" "$folder"
# Every user may read everything: the platform does not always run as root.
chmod -R u+rwX,a+rX,go-w "$folder"
if [ -d "$folder/tmp" ]; then chmod 1777 "$folder/tmp"; fi
find "$folder" -exec touch --no-dereference --date=@315532800 {} +
