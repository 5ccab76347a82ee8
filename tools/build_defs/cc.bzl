"""C++ rules of this repository: sources that use LibTorch are compiled with its headers precompiled; tests."""

load("@rules_cc//cc:defs.bzl", _cc_binary = "cc_binary", _cc_library = "cc_library", _cc_test = "cc_test")
load(":plain_headers.bzl", "plain_headers")

# These labels are texts, because select() needs texts. Label() makes them valid from any workspace.
_PRECOMPILED = str(Label("//third_party/precompiled:on"))
_PRECOMPILED_INSTRUMENTED = str(Label("//third_party/precompiled:on_and_instrumented"))

def _precompiled(name):
    """(deps, copts) with which a source is compiled on top of a header of //third_party/precompiled."""
    label = Label("//third_party/precompiled:" + name)
    folder = (label.workspace_root + "/" if label.workspace_root else "") + label.package
    path = "$(BINDIR)/%s/%s" % (folder, name)
    return ([label], ["-include", path + ".h", "-include", path + ".stamp"])

def _with_torch(rule, srcs = [], deps = [], copts = [], torch = False, **kwargs):
    """A rule whose sources are compiled with LibTorch's headers precompiled, if they need LibTorch."""
    if torch or (type(deps) == "list" and "//third_party:torch" in deps):
        # Sources of tests are recognized by their names, as in .bazelrc. A test's own code is
        # neither optimized nor instrumented.
        tests = [src for src in srcs if src.endswith("_test.cc") or src.endswith("_tests.cc")] if type(srcs) == "list" else []
        choices = {
            _PRECOMPILED: _precompiled("torch_for_tests" if tests else "torch"),
            _PRECOMPILED_INSTRUMENTED: _precompiled("torch_for_tests" if tests else "torch_instrumented"),
            "//conditions:default": ([], []),
        }
        deps = deps + select({key: choice[0] for key, choice in choices.items()})
        copts = copts + select({key: choice[1] for key, choice in choices.items()})
    rule(srcs = srcs, deps = deps, copts = copts, **kwargs)

def cc_library(srcs = [], **kwargs):
    """rules_cc's cc_library; what lists `//third_party:torch` gets the precompiled headers."""
    if srcs:
        _with_torch(_cc_library, srcs = srcs, **kwargs)
    else:
        _cc_library(**kwargs)

def cc_binary(**kwargs):
    """rules_cc's cc_binary, as cc_library."""
    _with_torch(_cc_binary, **kwargs)

def cc_test(**kwargs):
    """rules_cc's cc_test, as cc_library."""
    _with_torch(_cc_test, **kwargs)

_GPU_TAGS = ["gpu", "requires-gpu-nvidia"]

def _own(name, deps):
    """The dependencies of a test's sources, with the main and the seeds that every test here has, as arguments."""
    deps = [dep for dep in deps if dep != "//third_party:gtest_main"] + [
        Label("//third_party:gtest"),
        Label("//tools/build_defs:test_main"),
    ]
    if "//third_party:torch" in deps:
        seed = "//gpipe/testing:torch_seed"
        deps = [dep for dep in deps if dep != seed] + [Label(seed)]
    deps = {str(dep): dep for dep in deps}
    plain_headers(
        name = name + "_deps",
        testonly = True,
        deps = [dep for key, dep in deps.items() if key != "//third_party:gtest"],
    )
    return {"deps": [":" + name + "_deps"], "torch": "//third_party:torch" in deps}

def _tests(name, library, tags, env, cuda, fake, cpu, multi_gpu, visibility, **common):
    """`x_test`, `x_fake_test` and `x_cuda_test`, as far as they are wanted, of sources that are compiled already."""
    if cpu:
        cc_test(
            name = name,
            env = dict(env, GPIPE_TEST_DEVICE = "cpu"),
            tags = tags,
            deps = library,
            visibility = visibility,
            **common
        )
    stem = name[:-len("_test")]
    if fake:
        cc_test(
            name = stem + "_fake_test",
            env = dict(env, GPIPE_TEST_DEVICE = "fake"),
            tags = tags,
            deps = library + [Label("//gpipe/testing/fake_accelerator:test_support")],
            visibility = visibility,
            **common
        )
    if cuda:
        cc_test(
            name = stem + "_cuda_test",
            env = dict(env, GPIPE_TEST_DEVICE = "cuda"),
            # The tag "exclusive" is for the single GPU: another test's memory on it would look like
            # ours.
            tags = tags + _GPU_TAGS + (["multi_gpu"] if multi_gpu else []) + ["exclusive"],
            deps = library,
            visibility = (visibility or []) + [str(Label("//tools/gpu_bundle:__pkg__"))],
            **common
        )

def gpipe_cc_test(name, srcs, deps = [], cuda = False, fake = False, multi_gpu = False, cpu = True, tags = [], env = {}, data = [], args = [], copts = [], size = "medium", timeout = None, flaky = None, visibility = None):
    """A GoogleTest, once for the CPU and, if asked, for CUDA and the fake accelerator, from one source.

    `x_test` runs with GPIPE_TEST_DEVICE=cpu, `x_cuda_test` with GPIPE_TEST_DEVICE=cuda; the sources are
    compiled once. `bazel test` leaves CUDA tests out unless it gets --config=gpu, where a test that skips
    itself (GTEST_SKIP) counts as failed. Do not list gtest_main: the macro brings its own main.

    `x_fake_test` runs with GPIPE_TEST_DEVICE=fake, on any machine: it alone links the fake accelerator
    (gpipe/testing/fake_accelerator), where a race, a failed kernel or an unexpected wait of the host
    fails the test too. The sources find their device by gpipe/testing/device.h.

    Every test draws from one seed (gpipe/testing/seed.h); one that lists `//third_party:torch` has LibTorch's
    generators seeded before each test.

    Args:
      name: ends in `_test`.
      srcs: the test's sources.
      deps: what they include, `//third_party:gtest` among it or not.
      cuda: whether to make `x_cuda_test` too.
      fake: whether to make `x_fake_test` too.
      multi_gpu: whether the CUDA test needs more than one GPU.
      cpu: False for a test that makes no sense without streams.
      tags: of all tests.
      env: of all tests.
      data: of all tests.
      args: of all tests.
      copts: for the sources.
      size: of all tests.
      timeout: of all tests.
      flaky: of all tests.
      visibility: of all tests.
    """
    if not name.endswith("_test"):
        fail("gpipe_cc_test: the name must end in _test, not: " + name)
    common = dict(args = args, data = data, flaky = flaky, size = size, timeout = timeout)
    if not (cuda or fake):
        common.update(_own(name, deps))
        cc_test(name = name, srcs = srcs, copts = copts, env = dict(env, GPIPE_TEST_DEVICE = "cpu"), tags = tags, visibility = visibility, **common)
        return
    library = name + "_lib"
    cc_library(
        name = library,
        testonly = True,
        srcs = srcs,
        copts = copts,
        tags = tags,
        alwayslink = True,  # Nothing but its own constructors refers to a GoogleTest test.
        **_own(library, deps)
    )
    _tests(name, [":" + library], tags, env, cuda, fake, cpu, multi_gpu, visibility, **common)

def gpipe_cc_tests(name, srcs, deps = [], each = {}, size = "small", **kwargs):
    """Several GoogleTests whose sources are compiled as one, for reading LibTorch's headers is most of what each costs.

    `x_test.cc` becomes the test `x_test`, a program and a process of its own that runs the tests of its own file
    only, with all that gpipe_cc_test says of one. Names in the files' anonymous namespaces do not meet
    (test_unit.sh); their `#define`s and what they declare outside do.

    Take files that need about the same headers, up to some 1,500 lines together: a change of one compiles all.

    Args:
      name: of the unit; ends in `_tests`.
      srcs: the tests' sources, each named `..._test.cc`.
      deps: what any of them includes.
      each: arguments of gpipe_cc_test that some of them have of their own: {"x_test": {"fake": True}}.
      size: of all tests.
      **kwargs: arguments of gpipe_cc_test for all of them.
    """
    if not name.endswith("_tests"):
        fail("gpipe_cc_tests: the name must end in _tests, not: " + name)
    native.genrule(
        name = name + "_source",
        testonly = True,
        srcs = srcs,
        outs = [name + ".cc"],
        cmd = "$(location %s) $(SRCS) >$@" % Label("//tools/build_defs:test_unit.sh"),
        tools = [Label("//tools/build_defs:test_unit.sh")],
    )
    cc_library(
        name = name,
        testonly = True,
        srcs = [name + ".cc"],
        alwayslink = True,
        **_own(name, deps)
    )
    names = [src[:-len(".cc")] for src in srcs]
    for unknown in each:
        if unknown not in names:
            fail("gpipe_cc_tests: no source of %s is %s.cc" % (name, unknown))
    for test in names:
        if not test.endswith("_test"):
            fail("gpipe_cc_tests: a source's name must end in _test.cc, not: " + test + ".cc")
        native.genrule(
            name = test + "_choice",
            testonly = True,
            outs = [test + "_choice.cc"],
            cmd = "echo 'extern const char* const gpipe_tests_of; const char* const gpipe_tests_of = \"%s\";' >$@" % ("/" + test + ".cc"),
        )
        cc_library(
            name = test + "_chosen",
            testonly = True,
            srcs = [test + "_choice.cc"],
            alwayslink = True,
        )
        own = dict(dict(tags = [], env = {}, cuda = False, fake = False, cpu = True, multi_gpu = False, visibility = None, size = size), **kwargs)
        own.update(each.get(test, {}))
        _tests(test, [":" + name, ":" + test + "_chosen"], **own)
