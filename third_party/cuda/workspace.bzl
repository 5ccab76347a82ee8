"""The CUDA Toolkit, for programs that need nvcc or its libraries: found, or a stub with the same labels."""

load("//third_party:system.bzl", "maybe")

def _toolkit(repository_ctx):
    candidates = [repository_ctx.os.environ.get(name) for name in ["CUDA_HOME", "CUDA_PATH"]]
    candidates.append("/usr/local/cuda")
    nvcc = repository_ctx.which("nvcc")
    if nvcc:
        candidates.append(str(nvcc.realpath.dirname.dirname))
    for candidate in candidates:
        if candidate and repository_ctx.path(candidate + "/bin/nvcc").exists and repository_ctx.path(candidate + "/include/cuda_runtime_api.h").exists:
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
    environ = ["CUDA_HOME", "CUDA_PATH", "PATH"],
    local = True,
)

def repo():
    maybe(_cuda, name = "local_cuda")
