#!/usr/bin/env bash
# Runs the C++ test programs: run.sh SANITIZER PROGRAM...
#
# A program named planted_KIND_FAULT holds a fault on purpose that the sanitizer of that KIND
# (address, thread) must report by that name; these come first, because a check that finds nothing
# proves nothing until it has found something. Without that sanitizer they are not run.
set -uo pipefail

sanitizer=$1
shift
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-second_deadlock_stack=1}
# Older ThreadSanitizers cannot place their shadow memory under much address randomisation.
fixed=()
if [[ $sanitizer == thread ]] && setarch -R true 2>/dev/null; then fixed=(setarch -R); fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
planted=()
ordinary=()
for program in "$@"; do
  case $(basename "$program") in
    planted_"${sanitizer:-none}"_*) planted+=("$program") ;;
    planted_*) ;;
    *) ordinary+=("$program") ;;
  esac
done
if [[ -n $sanitizer && ${#planted[@]} == 0 ]]; then
  echo "no planted fault for the $sanitizer sanitizer"
  failed=1
fi

# The [@]+ guards are for bash before 4.4, where an empty array is an unset variable.
for program in ${planted[@]+"${planted[@]}"}; do
  fault=$(basename "$program")
  fault=${fault#planted_*_}
  timeout 120 ${fixed[@]+"${fixed[@]}"} "$program" >"$log" 2>&1
  if grep -q "\(Sanitizer\|runtime error\): ${fault//_/.}" "$log"; then
    echo "found    $(basename "$program")"
  else
    echo "NOT FOUND $(basename "$program")"
    cat "$log"
    failed=1
  fi
done
for program in ${ordinary[@]+"${ordinary[@]}"}; do
  if timeout 600 ${fixed[@]+"${fixed[@]}"} "$program" >"$log" 2>&1; then
    echo "passed   $(basename "$program")"
  else
    echo "FAILED   $(basename "$program") (status $?)"
    cat "$log"
    failed=1
  fi
done
exit $failed
