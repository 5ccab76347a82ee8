#!/usr/bin/env bash
# Tests day.sh with a run.sh, an nvidia-smi and a Python that only print: its rows, what it refuses, and its time
# limits. The real programs are run by `day.sh --device=cpu` from an unpacked bundle (README.md).
#   day_test.sh day.sh
set -uo pipefail
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT
bundle="${work}/bundle" tools="${work}/tools" out="${work}/out"
mkdir -p "${bundle}" "${tools}"
install -m 755 "$1" "${bundle}/day.sh"
echo 9.8.7+cu65 >"${bundle}/libtorch_version"
export CALLS="${work}/calls"
failures=0
fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

cat >"${bundle}/run.sh" <<'END'
#!/usr/bin/env bash
if [[ $1 == launch ]]; then
  for ((rank = 0; rank < ${2#--processes=}; ++rank)); do RANK="${rank}" "${@:4}" </dev/null || exit; done
  exit 0
fi
echo "rank=${RANK:-} gpu=${CUDA_VISIBLE_DEVICES:-} links=${GPIPE_DEVICE_LINKS:-} host=${NCCL_HOSTID:-} $*" >>"${CALLS}"
case "$*" in
  *--steps=100000*) echo "error: rank 1 is gone: it was killed" && exit 1 ;;
  *"${HANGS:-none}"*) echo "begun" && exec sleep 100 ;;
  *"${FAILS:-none}"*) printf 'error: the cause\nthe last line\n' && exit 3 ;;
  *"${PRINTS_NOTHING:-none}"*) exit 0 ;;
  *"${OTHER_HASH:-none}"*) echo "parameters ffffffffffffffff" ;;
  *--only*) echo '{"summary": true, "passed": 1, "failed": 0, "skipped": 0}' ;;
  ours*) echo '{"seconds":[0.030,0.010,0.020],"peak_bytes":2097152}' ;;
  *) echo "parameters 0123456789abcdef, 1234 tokens/s" ;;
esac
END
cat >"${tools}/gpu" <<'END'
#!/bin/sh
case "$*" in *query*) echo "Some GPU, 580.1" ;; *) echo "GPU 0: Some GPU" ;; esac
END
cat >"${tools}/no_gpu" <<'END'
#!/bin/sh
echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
exit 9
END
cat >"${tools}/python" <<'END'
#!/bin/sh
[ "$1" = -c ] && echo 9.8.7 && exit
echo "gpu=$CUDA_VISIBLE_DEVICES python $*" >>"$CALLS"
echo "2 ranks on Some GPU; 99 tokens/s"
END
chmod +x "${bundle}/run.sh" "${tools}"/*
ln -s gpu "${tools}/nvidia-smi"
export PATH="${tools}:${PATH}"
unset CUDA_VISIBLE_DEVICES

# day CODE FLAGS...: runs day.sh, which must end with that code.
day() {
  local code
  rm -rf "${out}" "${CALLS}"
  "${bundle}/day.sh" "--output=${out}" "${@:2}" >"${work}/log" 2>&1
  code=$?
  [[ ${code} -eq $1 ]] || { fail "exit code ${code}, expected $1: day.sh ${*:2}" && cat "${work}/log" >&2; }
}
# has FILE TEXT, lacks FILE TEXT: the file must have a line with that text, or must not.
has() { grep -qF -- "$2" "$1" || { fail "$1 lacks: $2" && cat "$1" >&2; }; }
lacks() { ! grep -qF -- "$2" "$1" || { fail "$1 has: $2" && cat "$1" >&2; }; }
# whole TABLE ROWS: the table must have that many rows, each with three filled columns.
whole() {
  local rows
  rows="$(grep -cE '^\| [^|]+ \| [^|]+ \| [0-9]+ \|$' "$1")"
  [[ ${rows} -eq $2 && $(grep -c '^|' "$1") -eq $((rows + 2)) ]] || { fail "$1: ${rows} whole rows, expected $2" && cat "$1" >&2; }
}

# On a GPU: all rows, and nothing is left out.
day 0 "--python=${tools}/python" --device=cuda:0 processes tests speed graphs
for piece in processes:12 tests:4 speed:19 graphs:6; do
  table="${out}/${piece%:*}/table.md"
  whole "${table}" "${piece#*:}"
  has "${table}" "${piece%:*}, on cuda:0 (Some GPU, 580.1), LibTorch 9.8.7+cu65"
  has "${table}" "${piece#*:} with a result, 0 failed, 0 left out"
  lacks "${table}" rehearsal
  [[ $(tar -tzf "${out}/${piece%:*}.tar.gz") == *"${piece%:*}/table.md"* ]] || fail "${piece%:*}.tar.gz has no table"
done
has "${out}/graphs/table.md" "| stages_4_without_graphs | median of 3 steps 20.00 ms, peak 2 MiB |"
has "${out}/speed/table.md" "| version_of_torch | 9.8.7, of ${tools}/python | 0 |"
has "${CALLS}" "rank=1 gpu=0 links=nccl host=gpipe-1 language_model"
has "${CALLS}" "rank=1 gpu=0 links= host= language_model"

# Each program sees only the GPU that was asked for, and takes its first.
day 0 "--python=${tools}/python" --device=cuda:1 tests speed graphs
has "${out}/graphs/table.md" "on cuda:1"
lacks "${CALLS}" gpu=0
lacks "${CALLS}" cuda:1
has "${CALLS}" "gpu=1 python ${bundle}/nccl_share.py"
CUDA_VISIBLE_DEVICES=4,6 day 0 --device=cuda:1 graphs
has "${CALLS}" gpu=6
CUDA_VISIBLE_DEVICES=4,6 day 2 --device=cuda:2 graphs
has "${work}/log" "CUDA_VISIBLE_DEVICES=4,6 has no such GPU"
CUDA_VISIBLE_DEVICES='' day 2 graphs
has "${work}/log" "CUDA_VISIBLE_DEVICES= has no such GPU"

# A rehearsal claims nothing of a GPU, and what needs one is in the table.
day 0 "--python=${tools}/python" --device=cpu processes tests speed graphs
for piece in processes:12 tests:4 speed:10 graphs:6; do
  table="${out}/${piece%:*}/table.md"
  whole "${table}" "${piece#*:}"
  has "${table}" "${piece%:*}, on cpu, LibTorch 9.8.7+cu65"
  has "${table}" "A rehearsal on a CPU"
  lacks "${table}" "Some GPU"
done
has "${out}/processes/table.md" "8 with a result, 0 failed, 4 left out"
has "${out}/graphs/table.md" "| stages_8_graphs | left out: CUDA Graphs need a GPU | 0 |"
lacks "${CALLS}" =cuda
# A Python without torch leaves its rows out.
day 0 --python=false --device=cpu speed
whole "${out}/speed/table.md" 8
has "${out}/speed/table.md" "| tiny_torch_compile | left out: false has no torch | 0 |"

# Failures.
FAILS=--stages=2 day 1 --device=cpu processes
has "${out}/processes/table.md" "| two_processes_host | FAILED (3); error: the cause |"
has "${out}/processes/table.md" "| resumed_by_one | left out: saved_by_two failed | 0 |"
FAILS=--steps=0 day 1 "--python=${tools}/python" --device=cpu speed
whole "${out}/speed/table.md" 10
has "${out}/speed/table.md" "| tiny_pipelining_2 | left out: tiny_begin failed | 0 |"
PRINTS_NOTHING=--stages=1 day 1 --device=cpu processes
has "${out}/processes/table.md" "| one_process | FAILED: it ended well without 'parameters [0-9a-f]{16}'; it wrote nothing |"
lacks "${out}/processes/table.md" compared
OTHER_HASH=zb-v day 1 --device=cpu processes
has "${out}/processes/table.md" "| zb_v_host, compared | FAILED: not parameters 0123456789abcdef | 0 |"

# Time limits: the command is ended, and the others run.
HANGS=--stages=4 day 1 --device=cpu --timeout=2 graphs
has "${out}/graphs/table.md" "| stages_4_without_graphs | FAILED (124): ended after 2 s, its time limit; begun |"
has "${out}/graphs/table.md" "| stages_8_without_graphs | median of 3 steps"
has "${out}/graphs/table.md" "6 rows: 2 with a result, 1 failed, 3 left out"

# Mistakes.
day 2 --device=cpu
has "${work}/log" "no piece is given"
day 2 --device=gpu graphs
has "${work}/log" "--device=gpu: give cpu or a GPU such as cuda:0"
day 2 --device=cpu --timeout=0 graphs
has "${work}/log" "--timeout=0: give seconds"
day 2 --device=cpu quux
has "${work}/log" "quux: there are"
if ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
  ln -sf no_gpu "${tools}/nvidia-smi"
  day 2 graphs
  has "${work}/log" "--device=cuda:0 (cuda:0 is the default): this machine has no GPU that nvidia-smi lists; --device=cpu is the rehearsal"
  [[ ! -e ${out} ]] || fail "a refused day left ${out}"
fi

[[ ${failures} -eq 0 ]] && echo "all good"
exit "${failures}"
