#!/usr/bin/env bash
# Describes the properties of this machine on which the result of a test may depend without Bazel's
# knowledge. Results that Bazel has kept prove nothing on another machine (tools/ci/checks.sh).
#   tools/ci/machine.sh           prints a hash of them
#   tools/ci/machine.sh --facts   prints them, for people
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# SYSTEM: a folder that stands for /; for tests.
system="${SYSTEM:-}"
facts() {
  local libtorch folder
  echo "kernel: $(uname -srm)"
  # nproc obeys these variables, but tests do not get them.
  echo "cores: $(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)"
  echo "user: $(id -u)"
  # In a container these files say how much of the machine it may use.
  cat "${system}"/sys/fs/cgroup/{cpu,memory}.max 2>/dev/null || true
  # LibTorch chooses its kernels by the processor's flags, which are the same on all cores.
  sed -n '/^\(vendor_id\|cpu family\|model\|model name\|stepping\|flags\|Features\|CPU part\)[ \t]*:/p; /^$/q' "${system}/proc/cpuinfo"
  # The size is rounded, because the kernel reserves another amount at each start.
  awk '/^MemTotal:/ { printf "memory: %.0f GiB\n", $2 / 1048576 }' "${system}/proc/meminfo"
  cat "${system}/proc/driver/nvidia/version" 2>/dev/null || true
  # The packages of this Debian with their versions; "no dpkg" on another system.
  dpkg-query --root="${system:-/}" --show --showformat='${db:Status-Abbrev} ${binary:Package} ${Version}\n' 2>/dev/null | LC_ALL=C sort ||
    echo "no dpkg"
  # The packages of the Python that tests would start.
  python3 -c 'import importlib.metadata as m; print("\n".join(sorted({"{} {}".format(d.metadata["Name"], d.version) for d in m.distributions()})))' 2>/dev/null ||
    echo "no Python"
  # The shared libraries of LibTorch are not inputs of Bazel (third_party/libtorch). Their folders are named by
  # versions.
  libtorch="$(third_party/libtorch/libtorch.sh find)" || libtorch="no LibTorch"
  echo "${libtorch}"
  folder="$(sed -n 's/^torch=//p' <<<"${libtorch}")"
  [[ -z ${folder} ]] || stat --format='%n %s' "${folder}"/lib/*.so* 2>/dev/null || true
}

case "${1:-}" in
  --facts) facts ;;
  "") facts | sha256sum | cut -c1-16 ;;
  *) echo "usage: machine.sh [--facts]" >&2 && exit 2 ;;
esac
