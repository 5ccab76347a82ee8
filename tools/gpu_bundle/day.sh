#!/usr/bin/env bash
# Runs what a machine with a GPU that is lent for half an hour should run, in pieces of a few minutes. Each piece leaves
# an archive and a table of what was seen. On a CPU it is the rehearsal: the same commands with smaller networks.
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

usage() {
  cat <<'END'
usage: day.sh [--device=cuda:0|cpu] [--output=DIR] [--minutes=9] [--timeout=SECONDS] [--python=python3] PIECE...

Pieces, in their order:
  processes   one run, one hash: one process, several on this device by way of the host and over NCCL, a killed rank
  tests       the tests of processes on devices, and of NCCL between ranks that share a GPU
  speed       a Llama of GPT-2's two smaller shapes in bfloat16: ours at 1, 2 and 4 stages and over two processes,
              beside PyTorch, torch.compile and torch.distributed.pipelining
  graphs      ours with CUDA Graphs and without

  --device=DEVICE   where everything runs; default cuda:0. On cpu, the rehearsal, networks are small, and what needs a
                    GPU is left out
  --output=DIR      what each program printed, in DIR/PIECE, with rows.tsv and table.md; DIR/PIECE.tar.gz has all of it;
                    default: day beside this script
  --minutes=N       of each piece: a command that would begin later is left out, one that runs then is ended
  --timeout=SECONDS of each command, where its own time limit is longer
  --python=PROGRAM  a Python with torch, best of the bundle's version. Without torch its rows say that they were left out

The exit code is 0 if no command failed. What was left out did not fail, and is in the table.
END
}
fail() {
  echo "error: $*" >&2
  exit 2
}

device=cuda:0 output="${here}/day" minutes=9 timeout=3600 python=python3 pieces=()
for word; do
  case "${word}" in
    --help) usage && exit 0 ;;
    --device=*) device="${word#*=}" ;;
    --output=*) output="${word#*=}" ;;
    --minutes=*) minutes="${word#*=}" ;;
    --timeout=*) timeout="${word#*=}" ;;
    --python=*) python="${word#*=}" ;;
    processes | tests | speed | graphs) pieces+=("${word}") ;;
    *) fail "${word}: there are --device, --output, --minutes, --timeout, --python, and the pieces processes, tests, speed, graphs" ;;
  esac
done
[[ ${device} == cpu || ${device} =~ ^cuda:(0|[1-9][0-9]*)$ ]] || fail "--device=${device}: give cpu or a GPU such as cuda:0"
[[ ${minutes} =~ ^[1-9][0-9]*$ ]] || fail "--minutes=${minutes}: give a whole number"
[[ ${timeout} =~ ^[1-9][0-9]*$ ]] || fail "--timeout=${timeout}: give seconds"
[[ ${#pieces[@]} -gt 0 ]] || fail "no piece is given: processes, tests, speed, graphs"
kind="${device%%:*}" gpu="" place="${device}"
if [[ ${kind} == cuda ]]; then
  # Without a GPU all rows would fail, each after some seconds. A machine may have a GPU but no
  # nvidia-smi.
  [[ $(nvidia-smi -L 2>/dev/null) == GPU* ]] || compgen -G '/dev/nvidia[0-9]*' >/dev/null ||
    fail "--device=${device} (cuda:0 is the default): this machine has no GPU that nvidia-smi lists; --device=cpu is the rehearsal"
  # Programs see only this GPU, because some of them take the first one and others that of their
  # rank.
  number="${device#*:}"
  if [[ -v CUDA_VISIBLE_DEVICES ]]; then
    IFS=, read -ra visible <<<"${CUDA_VISIBLE_DEVICES}"
    [[ ${number} -lt ${#visible[@]} ]] || fail "--device=${device}: CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES} has no such GPU"
    number="${visible[number]}"
  else
    export CUDA_DEVICE_ORDER=PCI_BUS_ID # nvidia-smi's order
  fi
  export CUDA_VISIBLE_DEVICES="${number}"
  device=cuda:0
  # nvidia-smi counts GPUs by their place on the bus; CUDA does only if it is told to.
  gpu="name unknown: CUDA_VISIBLE_DEVICES was set without CUDA_DEVICE_ORDER=PCI_BUS_ID"
  if [[ ${number} == GPU-* || ${CUDA_DEVICE_ORDER:-} == PCI_BUS_ID ]]; then
    gpu="$(nvidia-smi -i "${number}" --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null)" || gpu="unknown to nvidia-smi"
  fi
fi
mkdir -p "${output}" || fail "--output=${output} cannot be written"
output="$(cd "${output}" && pwd)"
failed=0

# note NAME RESULT SECONDS: adds a row to the piece's table.
note() { printf '%s\t%s\t%s\n' "$1" "$2" "$3" | tee -a "${folder}/rows.tsv"; }

# left_out NAME REASON: adds a row of what did not run.
left_out() { note "$1" "left out: $2" 0; }

# row NAME LIMIT PATTERN COMMAND...: runs a command for LIMIT seconds at most, and adds a row with
# the last text in the command's output that matches PATTERN.
row() {
  local name="$1" limit="$2" pattern="$3" begin left code found output why
  shift 3
  begin="${SECONDS}" left=$((deadline - SECONDS))
  if [[ ${left} -lt 10 ]]; then
    left_out "${name}" "the piece's ${minutes} minutes were over"
    return 0
  fi
  limit=$((limit < timeout ? limit : timeout))
  limit=$((limit < left ? limit : left))
  printf '%q ' "$@" >"${folder}/${name}.log"
  echo >>"${folder}/${name}.log"
  timeout --kill-after=10 "${limit}" "$@" >>"${folder}/${name}.log" 2>&1
  code=$?
  # The log's first line is the command.
  output="$(sed 1d "${folder}/${name}.log")"
  found="$(grep -oE "${pattern}" <<<"${output}" | tail -n 1)"
  # If a command ends well, but its output has no text that matches, the row counts as failed.
  [[ ${code} -ne 0 || -n ${found} ]] || code=none
  if [[ ${code} != 0 ]]; then
    failed=$((failed + 1)) found="FAILED (${code})"
    [[ ${code} != none ]] || found="FAILED: it ended well without '${pattern}'"
    [[ ${code} != 124 && ${code} != 137 || $((SECONDS - begin)) -lt ${limit} ]] || found="FAILED (${code}): ended after ${limit} s, its time limit"
    # The last line with an error says more than the last one, which is often the launcher's.
    why="$(grep -i error <<<"${output}" | tail -n 1)"
    [[ -n ${why} ]] || why="$(grep -v '^ *$' <<<"${output}" | tail -n 1)"
    found+="; $(tr '\t' ' ' <<<"${why:-it wrote nothing}" | cut -c 1-160)"
  fi
  note "${name}" "${found}" $((SECONDS - begin))
  [[ ${code} == 0 ]]
}

# same NAME: checks that the row's result is that of the first row of this piece.
same() {
  local first this
  first="$(sed -n 1p "${folder}/rows.tsv" | cut -f 2)"
  this="$(awk -F '\t' -v name="$1" '$1 == name { print $2 }' "${folder}/rows.tsv")"
  [[ ${this} == "${first}" || ${this} == "left out"* || ${this} == FAILED* || ${first} == FAILED* ]] && return 0
  failed=$((failed + 1))
  note "$1, compared" "FAILED: not ${first}" 0
}

run="${here}/run.sh"
one_gpu=(NCCL_SOCKET_IFNAME=lo NCCL_MNNVL_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_IB_DISABLE=1)
# launched PROCESSES NAME LIMIT PATTERN PROGRAM ARGUMENTS...: adds a row of a program over
# processes.
launched() {
  row "$2" "$3" "$4" "${run}" launch "--processes=$1" -- "${run}" "${@:5}"
}
# over_nccl: does what launched() does, over NCCL. Ranks share one GPU, so NCCL_HOSTID makes NCCL
# take each rank for a host of its own.
over_nccl() {
  [[ ${kind} == cuda ]] || { left_out "$2" "NCCL needs a GPU" && return 0; }
  # shellcheck disable=SC2016 # each rank's own shell replaces RANK
  row "$2" "$3" "$4" env GPIPE_DEVICE_LINKS=nccl "${one_gpu[@]}" "${run}" launch "--processes=$1" -- \
    sh -c 'NCCL_HOSTID=gpipe-$RANK exec "$@"' rank "${run}" "${@:5}"
}

# has_torch NAME...: whether the Python has torch. If not, adds a row for each name.
has_torch() {
  [[ -n ${torch:-} ]] || torch="$("${python}" -c 'import torch; print(torch.__version__)' 2>/dev/null | tail -n 1)"
  [[ -n ${torch} ]] && return 0
  local name
  for name; do left_out "${name}" "${python} has no torch"; done
  return 1
}

# Writes a text of some 2 MB, which is the same on all machines.
write_text() {
  [[ -s ${output}/text.txt ]] ||
    awk 'BEGIN { n = 7; for (i = 0; i < 20000; ++i) { line = ""; for (k = 0; k < 18; ++k) {
      n = (n * 1103515245 + 12345) % 2147483648; line = line sprintf("%s ", substr("thequickbrownfoxjumps", n % 15 + 1, n % 6 + 1)) }
      print line } }' >"${output}/text.txt"
}

processes() {
  write_text
  local tiny=(language_model "--text=${output}/text.txt" "--devices=${device}" --length=64 --width=32 --heads=2 --blocks=3
    --batch=16 --chunks=8 --groups=4 --steps=12 --threads=1 --dropout=0.1 --sample=0 --validate_every=12)
  local hash='parameters [0-9a-f]{16}'
  row one_process 120 "${hash}" "${run}" "${tiny[@]}" --stages=1
  local name processes flags
  while read -r name processes flags; do
    # shellcheck disable=SC2086 # several flags
    launched "${processes}" "${name}_host" 120 "${hash}" "${tiny[@]}" ${flags} && same "${name}_host"
    # shellcheck disable=SC2086
    over_nccl "${processes}" "${name}_nccl" 120 "${hash}" "${tiny[@]}" ${flags} && same "${name}_nccl"
  done <<'END'
two_processes 2 --stages=2
four_processes 4 --stages=4
zb_v 2 --stages=4 --schedule=zb-v
replicas_and_zero 4 --replicas=2 --stages=2 --zero
END
  if launched 2 saved_by_two 120 "${hash}" "${tiny[@]}" --stages=2 --stop_at=6 "--save=${folder}/saved"; then
    row resumed_by_one 120 "${hash}" "${run}" "${tiny[@]}" --stages=1 "--resume=${folder}/saved" && same resumed_by_one
  else
    left_out resumed_by_one "saved_by_two failed"
  fi
  rm -rf "${folder}/saved"
  # After one rank is killed, all other processes must end by themselves. If one hung, the time
  # limit would end this row with FAILED (124).
  # shellcheck disable=SC2016 # the ranks' shells replace these; $$ stays the number of the program
  row a_killed_rank 60 'rank 1 .*(killed|signal 9).*' sh -c '"$@" && echo "it ended well" && exit 1; exit 0' not \
    "${run}" launch --processes=2 -- sh -c '[ "$RANK" != 1 ] || (sleep 8; kill -9 $$) & exec "$@"' killed \
    "${run}" "${tiny[@]/--steps=12/--steps=100000}" --stages=2
}

tests() {
  # A test is ended before its row is, so that the row has the counts.
  local rules=(--timeout=220 "--device=${kind}" "--output=${folder}/results")
  if [[ ${kind} != cuda ]]; then
    left_out nccl_shares_a_gpu "NCCL needs a GPU"
  elif has_torch nccl_shares_a_gpu; then
    row nccl_shares_a_gpu 90 '[0-9]+ ranks on .*' "${python}" "${here}/nccl_share.py" 2
  fi
  local test
  for test in world_nccl world_devices world_programs; do
    row "${test}" 240 '"passed": [0-9]+, "failed": [0-9]+, "skipped": [0-9]+' "${run}" "${rules[@]}" "--only=*${test}_cuda_test"
  done
}

speed() {
  write_text
  local shape other theirs name blocks width heads length=1024 batch=32 steps=20
  local shapes=("124M 12 768 12" "350M 24 1024 16")
  [[ ${kind} == cuda ]] || shapes=("tiny 2 64 2") length=64 batch=8 steps=4
  for shape in "${shapes[@]}"; do
    read -r name blocks width heads <<<"${shape}"
    local common=("--text=${output}/text.txt" "--blocks=${blocks}" "--width=${width}" "--heads=${heads}"
      "--length=${length}" "--batch=${batch}" --bfloat16)
    local ours=(language_model "${common[@]}" --chunks=8 "--steps=${steps}" "--validate_every=$((steps / 2))" --validation_rows=8
      --warm_up=0 --sample=0 "--devices=${device}")
    local rate='[0-9]+ tokens/s'
    row "${name}_ours_1" 120 "${rate}" "${run}" "${ours[@]}" --stages=1
    for stages in 2 4; do
      local on="${device}"
      for ((k = 1; k < stages; ++k)); do on+=",${device}"; done
      row "${name}_ours_${stages}" 120 "${rate}" "${run}" "${ours[@]}" "--stages=${stages}" "--devices=${on}"
    done
    launched 2 "${name}_ours_2_processes_host" 120 "${rate}" "${ours[@]}" --stages=2
    over_nccl 2 "${name}_ours_2_processes_nccl" 120 "${rate}" "${ours[@]}" --stages=2
    has_torch "${name}_pytorch" "${name}_torch_compile" "${name}_pipelining_2" || continue
    [[ -n ${said:-} ]] || note version_of_torch "${torch}, of ${python}" 0
    local said=1
    if ! row "${name}_begin" 60 'parameters [0-9a-f]{16}' "${run}" "${ours[@]}" --steps=0 --stages=1 "--save=${folder}/begin"; then
      for other in pytorch torch_compile pipelining_2; do left_out "${name}_${other}" "${name}_begin failed"; done
      continue
    fi
    theirs=("${python}" "${here}/language_model.py" "--begin=${folder}/begin" "${common[@]}" "--steps=${steps}"
      "--every=$((steps / 2))" "--device=${device}")
    local layers=$((2 * blocks + 3))
    row "${name}_pytorch" 120 "${rate}" "${theirs[@]}" "--balance=${layers}"
    row "${name}_torch_compile" 180 "${rate}" "${theirs[@]}" "--balance=${layers}" --compile
    row "${name}_pipelining_2" 120 "${rate}" env "${one_gpu[@]}" \
      "${theirs[@]}" "--balance=$((layers / 2)),$((layers - layers / 2))" --chunks=8
    rm -rf "${folder}/begin"
  done
}

# shellcheck disable=SC2016 # awk's own
median='/"seconds"/ { line = $0 }
  END {
    if (!match(line, /\[[^]]*\]/)) exit 1
    n = split(substr(line, RSTART + 1, RLENGTH - 2), s, ",")
    for (i = 2; i <= n; ++i) for (k = i; k > 1 && s[k] + 0 < s[k - 1] + 0; --k) { t = s[k]; s[k] = s[k - 1]; s[k - 1] = t }
    sub(/.*"peak_bytes":/, "", line)
    printf "median of %d steps %.2f ms, peak %d MiB\n", n, s[int((n + 1) / 2)] * 1000, line / 1048576
  }'
graphs() {
  local stages with name model=gpt2:12,768,12,1024 rows=4
  [[ ${kind} == cuda ]] || model=gpt2:4,16,2,16
  for stages in 1 4 8; do
    for with in nographs graphs; do
      name="stages_${stages}_${with/nographs/without_graphs}"
      [[ ${kind} == cuda || ${with} == nographs ]] || { left_out "${name}" "CUDA Graphs need a GPU" && continue; }
      # shellcheck disable=SC2016 # the inner shell replaces it
      row "${name}" 120 'median of .*' bash -o pipefail -c '"${@:2}" <<<$'"'steps 10\nsteps 20'"' | tee -a /dev/stderr | awk "$1"' steps "${median}" \
        "${run}" ours "--model=${model}" "--rows=${rows}" "--stages=${stages}" --chunks=4 "--device=${kind}" "--${with}"
    done
  done
}

for piece in "${pieces[@]}"; do
  folder="${output}/${piece}"
  rm -rf "${folder}" "${output}/${piece}.tar.gz"
  mkdir -p "${folder}" || fail "${folder} cannot be written"
  deadline=$((SECONDS + minutes * 60))
  "${piece}"
  {
    printf '%s, on %s%s, LibTorch %s, %s:\n\n| what | result | seconds |\n|---|---|---|\n' "${piece}" "${place}" \
      "${gpu:+ (${gpu})}" "$(cat "${here}/libtorch_version")" "$(date -u +%F)"
    sed 's/|/\\|/g' "${folder}/rows.tsv" | awk -F '\t' '{ printf "| %s | %s | %s |\n", $1, $2, $3 }'
    awk -F '\t' '$2 ~ /^FAILED/ { ++bad } $2 ~ /^left out/ { ++out } END { printf "\n%d rows: %d with a result, %d failed, %d left out.\n", NR, NR - bad - out, bad, out }' \
      "${folder}/rows.tsv"
    [[ ${kind} == cuda ]] || echo "A rehearsal on a CPU, with small networks: it says nothing of speed, and nothing of a GPU."
  } >"${folder}/table.md"
  tar -C "${output}" -czf "${output}/${piece}.tar.gz" "${piece}"
done
[[ ${failed} -eq 0 ]]
