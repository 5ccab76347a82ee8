"""The Python that LibTorch's own Python is built for: its headers, LibTorch's pybind11; or a stub with the same labels."""

load("//third_party:system.bzl", "find_under_prefix")

def _python_impl(repository_ctx):
    repository_ctx.file("WORKSPACE", "workspace(name = \"local_python\")\n")
    include = repository_ctx.path(Label("@libtorch//:BUILD.bazel")).dirname.get_child("include").get_child("torch").realpath.dirname
    torch = include.dirname
    versions = [
        entry.basename[len("_C.cpython-"):].split("-")[0]
        for entry in torch.readdir()
        if entry.basename.startswith("_C.cpython-")
    ]
    missing = ""
    if not versions or not torch.get_child("lib").get_child("libtorch_python.so").exists or not include.get_child("pybind11").exists:
        missing = "the LibTorch of {} did not come with its Python: take its wheel (unset LIBTORCH_ROOT)".format(torch)
    else:
        version = versions[0][0] + "." + versions[0][1:]
        headers = "include/python" + version
        prefix = find_under_prefix(repository_ctx, headers + "/Python.h")
        if prefix:
            repository_ctx.symlink(prefix + "/" + headers, "python")
            repository_ctx.symlink(include.get_child("pybind11"), "include/pybind11")
        else:
            missing = "there is no {}/Python.h under /usr or /usr/local: apt-get install libpython{}-dev, then tools/bazel shutdown".format(headers, version)
    repository_ctx.symlink(
        Label("//third_party/python:stub.BUILD.bazel" if missing else "//third_party/python:python.BUILD.bazel"),
        "BUILD.bazel",
    )
    repository_ctx.file("python.bzl", "MISSING = %s\n" % repr(missing))

# A Bazel that runs keeps what it has found, and does not see headers that are installed meanwhile. A
# new one looks again, because the rule is local.
_python = repository_rule(
    implementation = _python_impl,
    local = True,
)

def repo():
    _python(name = "local_python")
