#!/usr/bin/env bash
# Runs the driver under a sanitizer: run.sh SANITIZER DRIVER PROGRAMS
#
# Every algorithm at world sizes 2 to 4, synchronous and through the engine's thread, with small
# slots and random pauses. Under ThreadSanitizer the ranks are threads over one mapping, because it
# sees a race only there; else they are processes. Planted faults come first.
set -uo pipefail

sanitizer=$1
driver=$2
programs=$3
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-second_deadlock_stack=1}
command=("$driver" run)
if [[ $sanitizer == thread ]]; then
  # Older ThreadSanitizers cannot place their shadow memory under much address randomisation.
  if setarch -R true 2>/dev/null; then command=(setarch -R "${command[@]}"); fi
  command+=(--threads)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0

# prefixes WORLD CHANNELS: what the driver can run; it maps no memory of its callers.
prefixes() {
  find "$programs/w$1c$2" -name '*.rank0' ! -name '*_mapped.*' | sort | sed 's/\.rank0$//' |
    paste -sd,
}

# found WHAT PATTERN OPTION...: the fault must be reported.
found() {
  local what=$1 pattern=$2
  shift 2
  if timeout 120 "${command[@]}" "$@" >"$log" 2>&1 || ! grep -qE "$pattern" "$log"; then
    echo "NOT FOUND driver: $what"
    cat "$log"
    failed=1
  else
    echo "found    driver: $what"
  fi
}

# passes WHAT OPTION...
passes() {
  local what=$1 status
  shift
  timeout 120 "${command[@]}" "$@" >"$log" 2>&1
  status=$?
  if [[ $status == 0 ]]; then
    echo "passed   driver: $what"
  else
    echo "FAILED   driver: $what (status $status)"
    cat "$log"
    failed=1
  fi
}

two=$(prefixes 2 1)
small=(--slots 2 --slot-bytes 64)
found "planted wrong element" '^wrong: ' --world 2 --programs "$two" --plant stale
if [[ $sanitizer == thread ]]; then
  found "planted race" 'ThreadSanitizer: data race' \
    --world 2 --programs "$two" --count 100000 --plant race
fi

for world in 2 3 4; do
  for channels in 1 2; do
    options=(--world "$world" --channels "$channels" --programs "$(prefixes "$world" "$channels")")
    for engine in "" --async; do
      how="world $world, $channels channel(s)${engine:+, through the engine}"
      passes "$how" "${options[@]}" $engine "${small[@]}" --count 333 --iterations 140 --delay-us 300
      passes "$how, many segments" "${options[@]}" $engine "${small[@]}" --count 20001 \
        --iterations 14 --dtype bfloat16 --op MAX
    done
  done
done
if [[ $sanitizer != thread ]]; then
  command=("$driver" kill)
  passes "20 deaths" --world 3 --programs "$(prefixes 3 1)" --survivors "$two" "${small[@]}" \
    --count 333 --rounds 20
  passes "20 deaths among messages" --world 3 --messages "${small[@]}" --count 333 --rounds 20
  command=("$driver" run)
fi
passes "nothing but headers" --world 3 --programs "$(prefixes 3 1)" --count 0 --iterations 500
passes "one rank" --world 1 --programs "$(prefixes 1 1)" --iterations 100 --async
exit $failed
