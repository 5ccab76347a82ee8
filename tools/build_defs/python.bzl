"""Extensions of the Python that LibTorch comes with; where its headers are missing, a sentence that says so."""

load("//third_party/python:python.bzl", "MISSING")
load(":cc.bzl", "cc_binary", "cc_library")

# pybind11's types are hidden. gcc warns if a type that is not hidden has such a member. Here the
# linker hides all types, so the warning does not matter.
_COPTS = ["-Wno-attributes"]

def python_library(name, srcs = [], hdrs = [], deps = [], **kwargs):
    """A cc_library that includes Python's headers. Nothing is in it where there are none."""
    if MISSING:
        cc_library(name = name, **kwargs)
    else:
        cc_library(name = name, srcs = srcs, hdrs = hdrs, copts = _COPTS, deps = deps + ["//third_party:python"], **kwargs)

def python_extension(name, srcs, deps, exports, **kwargs):
    """`name`, which ends in .so, that exports of `srcs` what the version script `exports` lists, and nothing of `deps`.

    Where Python's headers are missing it is a text instead, the sentence that says so: tests skip themselves with it.
    """
    if not name.endswith(".so"):
        fail("python_extension: the name must end in .so, not: " + name)
    if MISSING:
        native.genrule(
            name = name + "_missing",
            outs = [name],
            cmd = "echo '%s' >$@" % MISSING,
            **kwargs
        )
        return
    cc_binary(
        name = name,
        additional_linker_inputs = [exports],
        copts = _COPTS,
        linkopts = [
            # The linker is bfd, because gold exports weak functions of the standard library in
            # spite of the script.
            "-fuse-ld=bfd",
            "-Wl,--exclude-libs,ALL",
            # An RPATH, and not a RUNPATH, because it also counts for libraries that only other
            # libraries need.
            "-Wl,--disable-new-dtags",
            "-Wl,-rpath,\\$$ORIGIN",
            "-Wl,--version-script=$(location %s)" % exports,
        ],
        # bfd does not know --start-lib.
        features = ["-supports_start_end_lib"],
        linkshared = True,
        srcs = srcs,
        deps = deps,
        **kwargs
    )
