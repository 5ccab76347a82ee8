"""The CUDA Toolkit, for programs that need nvcc or its libraries: found, or a stub with the same labels."""

# The files that a folder must have to count as a toolkit.
_PROOFS = ["bin/nvcc", "include/cuda_runtime_api.h"]

def _lacks(repository_ctx, folder):
    """The first file that a toolkit has and this folder has not; None if it is a toolkit."""
    for proof in _PROOFS:
        if not repository_ctx.path(folder + "/" + proof).exists:
            return proof
    return None

def _toolkit(repository_ctx):
    # A variable belongs to this machine, so it wins over what the workspace says.
    for variable in ["CUDA_HOME", "CUDA_PATH"]:
        folder = repository_ctx.os.environ.get(variable)
        if folder and not _lacks(repository_ctx, folder):
            return folder
    asked = repository_ctx.attr.path
    if asked:
        # The user has named this folder, so it must not be passed over silently.
        lacking = _lacks(repository_ctx, asked) if asked.startswith("/") else "/ at its beginning"
        if lacking:
            fail("\ngpipe.cuda(path = \"{}\") in MODULE.bazel is not a CUDA Toolkit: it has no {}.".format(asked, lacking))
        return asked
    candidates = ["/usr/local/cuda"]
    nvcc = repository_ctx.which("nvcc")
    if nvcc:
        candidates.append(str(nvcc.realpath.dirname.dirname))
    for candidate in candidates:
        if not _lacks(repository_ctx, candidate):
            return candidate
    return None

def _architectures(repository_ctx, toolkit):
    """What nvcc can compile for, such as ["75", "80"]; empty if it does not tell."""
    result = repository_ctx.execute([toolkit + "/bin/nvcc", "--list-gpu-arch"])
    if result.return_code != 0:
        return []
    return [line.strip()[len("compute_"):] for line in result.stdout.split("\n") if line.startswith("compute_")]

def _cuda_impl(repository_ctx):
    toolkit = _toolkit(repository_ctx)
    repository_ctx.file("WORKSPACE", "workspace(name = \"local_cuda\")\n")
    if toolkit:
        repository_ctx.symlink(toolkit + "/include", "include")
        repository_ctx.symlink(toolkit + "/bin/nvcc", "bin/nvcc")
        repository_ctx.template(
            "BUILD.bazel",
            Label("//third_party/cuda:cuda.BUILD.tpl"),
            {"%{lib}": toolkit + "/lib64"},
        )
    else:
        repository_ctx.symlink(Label("//third_party/cuda:stub.BUILD.bazel"), "BUILD.bazel")
    repository_ctx.file("cuda.bzl", "CUDA_TOOLKIT = %s\nCUDA_ARCHITECTURES = %s\n" % (
        repr(toolkit or ""),
        repr(_architectures(repository_ctx, toolkit) if toolkit else []),
    ))

_cuda = repository_rule(
    implementation = _cuda_impl,
    attrs = {"path": attr.string(doc = "A CUDA Toolkit, for a machine where no variable names one.")},
    environ = ["CUDA_HOME", "CUDA_PATH", "PATH"],
    local = True,
)

def repo(path = ""):
    _cuda(name = "local_cuda", path = path)
