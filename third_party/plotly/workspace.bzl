"""Plotly, as one file of JavaScript. The work is done by plotly.sh, which can be run by hand."""

# This allows a download of 10 MB over a slow line.
_TIMEOUT_SECONDS = 30 * 60

def _plotly_impl(repository_ctx):
    repository_ctx.path(Label("//third_party/plotly:requirements.txt"))
    found = repository_ctx.execute(
        [repository_ctx.path(Label("//third_party/plotly:plotly.sh"))],
        timeout = _TIMEOUT_SECONDS,
    )
    if found.return_code:
        fail("\n" + found.stderr)
    repository_ctx.symlink(found.stdout.strip(), "plotly.min.js")
    repository_ctx.file("WORKSPACE", "workspace(name = \"plotly\")\n")
    repository_ctx.file("BUILD.bazel", "exports_files([\"plotly.min.js\"])\n")

_plotly = repository_rule(
    implementation = _plotly_impl,
    environ = ["GPIPE_CACHE", "HOME", "PATH", "XDG_CACHE_HOME"],
    local = True,
)

def repo():
    _plotly(name = "plotly")
