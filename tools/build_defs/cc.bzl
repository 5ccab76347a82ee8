"""Macros for C++ tests."""

load("@rules_cc//cc:defs.bzl", "cc_library", "cc_test")

_GPU_TAGS = ["gpu", "requires-gpu-nvidia"]

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
    deps = [dep for dep in deps if dep != "//third_party:gtest_main"] + [
        Label("//third_party:gtest"),
        Label("//tools/build_defs:test_main"),
    ]
    if "//third_party:torch" in deps:
        seed = "//gpipe/testing:torch_seed"
        deps = [dep for dep in deps if dep != seed] + [Label(seed)]
    deps = {str(dep): dep for dep in deps}
    deps = [dep for key, dep in deps.items() if key != "//third_party:gtest"]
    common = dict(args = args, data = data, flaky = flaky, size = size, timeout = timeout, visibility = visibility)
    if not (cuda or fake):
        cc_test(name = name, srcs = srcs, copts = copts, deps = deps, env = dict(env, GPIPE_TEST_DEVICE = "cpu"), tags = tags, **common)
        return
    library = name + "_lib"
    cc_library(
        name = library,
        testonly = True,
        srcs = srcs,
        copts = copts,
        tags = tags,
        deps = deps,
        alwayslink = True,  # Nothing but its own constructors refers to a GoogleTest test.
    )
    if cpu:
        cc_test(
            name = name,
            env = dict(env, GPIPE_TEST_DEVICE = "cpu"),
            tags = tags,
            deps = [":" + library],
            **common
        )
    stem = name[:-len("_test")]
    if fake:
        cc_test(
            name = stem + "_fake_test",
            env = dict(env, GPIPE_TEST_DEVICE = "fake"),
            tags = tags,
            deps = [":" + library, Label("//gpipe/testing/fake_accelerator:test_support")],
            **common
        )
    if cuda:
        cc_test(
            name = stem + "_cuda_test",
            env = dict(env, GPIPE_TEST_DEVICE = "cuda"),
            # exclusive: one GPU, and another test's memory on it would look like ours.
            tags = tags + _GPU_TAGS + (["multi_gpu"] if multi_gpu else []) + ["exclusive"],
            deps = [":" + library],
            **dict(common, visibility = (visibility or []) + [str(Label("//tools/gpu_bundle:__pkg__"))])
        )
