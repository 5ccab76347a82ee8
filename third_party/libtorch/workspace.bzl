"""LibTorch: found, or downloaded once. The work is done by libtorch.sh, which can be run by hand."""

# This allows a download of 2.6 GB over a slow line.
_TIMEOUT_SECONDS = 3 * 60 * 60

# The variables that change the answer of libtorch.sh.
_ENVIRON = [
    "CUDA_HOME",
    "CUDA_PATH",
    "GPIPE_CACHE",
    "GPIPE_LIBTORCH",
    "GPIPE_LIBTORCH_VERSIONS",
    "HOME",
    "LIBTORCH_ROOT",
    "PATH",
    "XDG_CACHE_HOME",
]

# LibTorch has 9,400 headers, CUDA and CCCL 2,000 more. If they are listed one by one, Bazel links
# each of them into the sandbox of each compile action, which takes 30 s, while compiling a file
# takes 5 s. As folders they cost nothing, and the files of a pinned version do not change while
# Bazel runs. Bazel 4 accepts headers in a folder as declared. Later versions may not, so the
# official Bazels get the list, and with it the headers without an extension.
def _header_folders(folders):
    return "[%s]" % ", ".join(["\"%s\"" % folder for folder in folders])

def _header_globs(folders):
    patterns = [folder + suffix for folder in folders for suffix in ["/**/*.h", "/**/*.hpp", "/**/*.cuh"]]
    if "cccl" in folders:
        # CCCL's headers have no extension, like the standard library's: nv/target, nv/detail/*,
        # cuda/std/*.
        patterns.append("cccl/**")
    if "cuda" in folders:
        # A toolkit before CUDA 13 has these headers among its own. It is used with a LIBTORCH_ROOT
        # without wheels.
        patterns += ["cuda/cuda/std/**", "cuda/nv/**"]
    return "glob([%s], allow_empty = True)" % ", ".join(["\"%s\"" % pattern for pattern in patterns])

# The text with which libtorch.sh begins a line about something that it has passed over.
_NOTE = "GPipe: note: "

# Bazel repeats the text of a failure five times, so pip's log, already on the terminal, is left
# out.
def _what_to_do(stderr, environment):
    lines = [line for line in stderr.split("\n") if line.startswith("GPipe: ") and "downloading" not in line and not line.startswith(_NOTE)]
    return "\n" + "\n".join((lines or [stderr]) + [
        "GPipe: {} is what {} in MODULE.bazel says.".format(variable, _TAGS[variable])
        for variable in environment
    ])

# Maps the variables of libtorch.sh to the tags with the same meaning.
_TAGS = {
    "CUDA_HOME": "gpipe.cuda(path = ...)",
    "GPIPE_LIBTORCH": "gpipe.libtorch(version = ...)",
    "LIBTORCH_ROOT": "gpipe.libtorch(path = ...)",
}

def _environment(repository_ctx):
    """What libtorch.sh is told besides its own variables. Those are this machine's and win over the workspace's."""
    given = repository_ctx.os.environ
    environment = {}
    if repository_ctx.attr.path and not given.get("LIBTORCH_ROOT"):
        environment["LIBTORCH_ROOT"] = repository_ctx.attr.path
    if repository_ctx.attr.version and not given.get("GPIPE_LIBTORCH"):
        environment["GPIPE_LIBTORCH"] = repository_ctx.attr.version
    if repository_ctx.attr.cuda and not given.get("CUDA_HOME") and not given.get("CUDA_PATH"):
        environment["CUDA_HOME"] = repository_ctx.attr.cuda
    return environment

# The least value that __cplusplus has under -std=c++STANDARD.
_CPLUSPLUS = {
    "17": "201703L",
    "20": "202002L",
}

def _libtorch_impl(repository_ctx):
    script = repository_ctx.path(Label("//third_party/libtorch:libtorch.sh"))
    repository_ctx.path(Label("//third_party/libtorch:versions.txt"))  # the script reads the file
    environment = _environment(repository_ctx)
    found = repository_ctx.execute([script, "find"], environment = environment)
    fetched = None
    if found.return_code == 3:
        fetched = repository_ctx.execute(
            [script, "fetch"],
            environment = environment,
            timeout = _TIMEOUT_SECONDS,
            quiet = False,
        )
        if fetched.return_code:
            fail(_what_to_do(fetched.stderr, environment))
        found = repository_ctx.execute([script, "find"], environment = environment)
    if found.return_code:
        fail(_what_to_do(found.stderr, environment))

    # If LibTorch was fetched, the terminal has already shown these lines.
    for line in [] if fetched else found.stderr.split("\n"):
        if line.startswith(_NOTE):
            # buildifier: disable=print
            print(line)

    answer = {}
    for line in found.stdout.strip().split("\n"):
        key, _, value = line.partition("=")
        answer[key] = value
    torch = answer["torch"]
    if "LIBTORCH_ROOT" in environment and environment.get("GPIPE_LIBTORCH", answer["version"]) != answer["version"]:
        fail(("gpipe.libtorch in MODULE.bazel has version = \"{}\", but path = \"{}\" is LibTorch {}. " +
              "Name the version that is there, or leave one of the two out.").format(
            environment["GPIPE_LIBTORCH"],
            environment["LIBTORCH_ROOT"],
            answer["version"],
        ))

    folders = ["include/ATen", "include/c10", "include/caffe2", "include/torch"]
    for folder in folders:
        repository_ctx.symlink(torch + "/" + folder, folder)
    for key, link in [("cccl", "cccl"), ("cuda", "cuda"), ("crt", "cuda_crt/crt"), ("nccl", "nccl")]:
        if answer[key]:
            repository_ctx.symlink(answer[key], link)
            folders.append(link)
    repository_ctx.template(
        "standard/c10/macros/Export.h",
        Label("//third_party/libtorch:standard.h.tpl"),
        {
            "%{cplusplus}": _CPLUSPLUS[answer["cxx"]],
            "%{cxx}": answer["cxx"],
            "%{version}": answer["version"],
        },
    )
    lib = torch + "/lib"
    if " " in lib:
        # Bazel splits options of the linker at spaces.
        repository_ctx.symlink(lib, "lib")
        lib = str(repository_ctx.path("lib"))
    has_cuda = bool(answer["cuda"])
    repository_ctx.template(
        "BUILD.bazel",
        Label("//third_party/libtorch:libtorch.BUILD.tpl"),
        {
            "%{cuda_libs}": "\"-ltorch_cuda\", \"-lc10_cuda\"," if has_cuda else "",
            "%{hdrs}": _header_folders(folders + ["standard"]) if repository_ctx.attr.headers_as_folders else _header_globs(folders + ["standard"]),
            "%{has_cuda}": "1" if has_cuda else "0",
            "%{lib}": lib,
        },
    )
    repository_ctx.file("WORKSPACE", "workspace(name = \"libtorch\")\n")

_libtorch = repository_rule(
    implementation = _libtorch_impl,
    attrs = {
        "cuda": attr.string(doc = "A CUDA Toolkit, as CUDA_HOME."),
        "headers_as_folders": attr.bool(doc = "For Debian's Bazel."),
        "path": attr.string(doc = "An unpacked LibTorch, as LIBTORCH_ROOT."),
        "version": attr.string(doc = "A version of versions.txt, as GPIPE_LIBTORCH."),
    },
    environ = _ENVIRON,
    local = True,
)

def repo(**kwargs):
    _libtorch(name = "libtorch", **kwargs)
