"""LibTorch: found, or downloaded once. The work is done by libtorch.sh, which can be run by hand."""

load("//third_party:system.bzl", "maybe")

# A download of 2.6 GB over a slow line.
_TIMEOUT_SECONDS = 3 * 60 * 60

# What changes the answer of libtorch.sh.
_ENVIRON = [
    "GPIPE_CACHE",
    "HOME",
    "LIBTORCH_ROOT",
    "PATH",
    "XDG_CACHE_HOME",
]

def _libtorch_impl(repository_ctx):
    script = repository_ctx.path(Label("//third_party/libtorch:libtorch.sh"))
    repository_ctx.path(Label("//third_party/libtorch:requirements.txt"))
    found = repository_ctx.execute([script, "find"])
    if found.return_code == 3:
        fetched = repository_ctx.execute([script, "fetch"], timeout = _TIMEOUT_SECONDS, quiet = False)
        if fetched.return_code:
            fail("\n" + fetched.stderr)
        found = repository_ctx.execute([script, "find"])
    if found.return_code:
        fail("\n" + found.stderr)

    answer = {}
    for line in found.stdout.strip().split("\n"):
        key, _, value = line.partition("=")
        answer[key] = value
    torch = answer["torch"]
    nvidia = answer["nvidia"]

    repository_ctx.symlink(torch + "/include", "include")
    has_cuda = repository_ctx.path(torch + "/lib/libtorch_cuda.so").exists
    if nvidia:
        # The headers of the CUDA runtime and of NCCL lie beside the wheel: code that uses c10/cuda
        # compiles on a machine that has no CUDA Toolkit.
        for link, folder in [("cuda", "/cu13/include"), ("nccl", "/nccl/include")]:
            if repository_ctx.path(nvidia + folder).exists:
                repository_ctx.symlink(nvidia + folder, link)
    repository_ctx.template(
        "BUILD.bazel",
        Label("//third_party/libtorch:libtorch.BUILD.tpl"),
        {
            "%{cuda_libs}": "\"-ltorch_cuda\", \"-lc10_cuda\"," if has_cuda else "",
            "%{has_cuda}": "1" if has_cuda else "0",
            "%{lib}": torch + "/lib",
        },
    )
    repository_ctx.file("WORKSPACE", "workspace(name = \"libtorch\")\n")

_libtorch = repository_rule(
    implementation = _libtorch_impl,
    environ = _ENVIRON,
    local = True,
)

def repo():
    maybe(_libtorch, name = "libtorch")
