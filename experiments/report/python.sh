# shellcheck shell=bash
# To be sourced. Sets `python` to the first Python that has Jinja, which Debian installs for its own
# Python only.
for python in python3 /usr/bin/python3 ""; do
  [[ -n ${python} ]] || break
  "${python}" -c "import jinja2" 2>/dev/null && break
done
if [[ -z ${python} ]]; then
  echo "report: no python3 with Jinja. Debian, Ubuntu: apt-get install python3-jinja2 (tools/bazel does this)" >&2
  exit 1
fi
export PYTHONDONTWRITEBYTECODE=1
