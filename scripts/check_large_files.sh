#!/usr/bin/env bash
# check_large_files.sh FILE...: refuse files over 1 MiB; weights, logs and traces belong in runs/, not in the history.
set -euo pipefail
limit=$((1024 * 1024))
status=0
for file in "$@"; do
  size=$(wc -c <"$file")
  if [ "$size" -gt "$limit" ]; then
    echo "$file has $size bytes, over the limit of $limit"
    status=1
  fi
done
exit $status
