#!/bin/sh
# One session that has a shell alone, as the design of file mailboxes has it: by_hand.sh MAILBOX ROLE WORDS...
# It uses printf, mv, cat, ls, mkdir and sleep. Times are made up: they only have to grow.
set -eu
cd "$1"; role=$2; shift 2
taken=../taken-$$; mkdir -p "$taken"; count=0

say() { # FOLDER FROM TO ACTION TASK PAYLOAD
  count=$((count + 1)); mkdir -p "$1"
  at=$(printf '2026-02-09T22:%02d:%02d.%06dZ' $((count / 60)) $((count % 60)) $$)
  printf '{"from": "%s", "to": "%s", "action": "%s", "task_id": "%s", "timestamp": "%s", "payload": %s}\n' \
    "$2" "$3" "$4" "$5" "$at" "$6" > "$taken/half"
  mv "$taken/half" "$1/$at-$4.json"
}
task_of() { text=$(cat "$1"); rest=${text#*'"task_id": "'}; printf '%s' "${rest%%'"'*}"; }
is_there() { [ -e "$1" ]; }
pause() { sleep 0.02; }

worker() { # NAME COUNT: pattern 1, the worker
  done=0
  while [ "$done" -lt "$2" ]; do
    for file in inbox/"$1"/*-implement.json; do
      is_there "$file" && mv "$file" "$taken/now" || continue
      task=$(task_of "$taken/now")
      say outbox/"$1" "$1" lead done "$task" '{"by": "hand"}'
      done=$((done + 1))
    done
    pause
  done
}

lead() { # COUNT WORKER...: pattern 1, the lead
  wanted=$1; shift; next=0
  while [ "$next" -lt "$wanted" ]; do
    for name in "$@"; do
      next=$((next + 1))
      [ "$next" -le "$wanted" ] && say inbox/"$name" lead "$name" implement "T$next" '{"notes": "do it"}'
    done
  done
  while :; do
    seen=0
    for file in outbox/*/*-done.json; do is_there "$file" && seen=$((seen + 1)); done
    [ "$seen" -lt "$wanted" ] || break
    pause
  done
}

claimer() { # NAME: pattern 2; prints the tasks that it did
  while :; do
    ready= ; open=
    while read -r line; do
      case $line in
        *'"state":"ready"'*) rest=${line#'"'}; ready="$ready ${rest%%'"'*}" ;;
        *'"state":"claimed"'*) open=yes ;;
      esac
    done < board/status.json
    [ -n "$ready$open" ] || break
    for task in $ready; do
      printf '{"%s": "%s"}' "$task" "$1" > "$taken/half"; mv "$taken/half" board/claims.json
      looks=0
      while [ "$looks" -lt 100 ]; do # another session may have written over it: then it is tried again
        case $(cat board/claims.json) in
          *"\"$task\": {\"owner\":\"$1\""*)
            printf '%s\n' "$task"
            say inbox/board "$1" board status "$task" '{"state": "done", "result": "by hand"}'
            while case $(cat board/claims.json) in *"\"$task\": {"*) true ;; *) false ;; esac; do pause; done
            break ;;
          *"\"$task\": {\"owner\":"*) break ;; # somebody else's
        esac
        looks=$((looks + 1)); pause
      done
      break
    done
    pause
  done
}

stage() { # NAME NEXT COUNT: pattern 3
  passed=0
  while [ "$passed" -lt "$3" ]; do
    for file in inbox/"$1"/*.json; do
      is_there "$file" && mv "$file" "$taken/now" || continue
      text=$(cat "$taken/now"); rest=${text#*'"text": "'}
      say inbox/"$2" "$1" "$2" info "" "{\"text\": \"${rest%%'"'*}, $1\"}"
      passed=$((passed + 1))
    done
    pause
  done
}

"$role" "$@"
